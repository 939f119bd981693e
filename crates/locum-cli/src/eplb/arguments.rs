//! Arguments that planning and replaying share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use eplb::{Cluster, DeepSeek, Greedy, Incremental, Planner, Refined, Slots, Summary};

use super::blame::{about, option};
use crate::error::CliError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlannerName {
    /// The published algorithm, slot for slot
    Deepseek,
    /// Counts first, then heaviest first
    Greedy,
    /// Counts and places together; the default
    Refined,
    /// From the current placement, with as few moves as pay
    Incremental,
}

/// A whole number as it was given. That it is in range is checked here, not by clap, whose message
/// would not say what to do.
pub(crate) type Whole = i128;

/// The number in its own type.
pub(crate) fn whole<T: TryFrom<Whole>>(option: &str, value: Whole) -> Result<T, CliError> {
    T::try_from(value).map_err(|_| {
        let problem = if value < 0 {
            "is below 0; use a whole number of at least 0"
        } else {
            "is above every possible number; use a smaller one"
        };
        CliError::Usage(format!("{option}: {value} {problem}"))
    })
}

#[derive(Args)]
pub(crate) struct SharedArguments {
    /// Loads: JSON or CSV or safetensors, [layers][experts] or [windows][layers][experts]
    #[arg(long, value_name = "FILE")]
    pub(crate) load: PathBuf,

    /// The tensor with the loads, where a safetensors file has several
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Option<String>,

    /// Number of expert-parallel ranks
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    ranks: Whole,

    /// Number of nodes that the ranks are on
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    nodes: Whole,

    /// Expert slots of a layer over all ranks: one number, or one for each layer
    #[arg(
        long,
        value_name = "N[,N…]",
        value_delimiter = ',',
        required = true,
        allow_negative_numbers = true
    )]
    slots: Vec<Whole>,

    /// Allow slots that are not a multiple of the ranks
    #[arg(long)]
    pub(crate) uneven: bool,

    /// Expert groups (n_group of the model); kept on nodes where they divide by these
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    groups: Whole,

    /// How to plan; incremental if there is a budget, else refined
    #[arg(long, value_enum)]
    planner: Option<PlannerName>,

    /// Most experts that may move, over all layers (incremental)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max_moves: Option<Whole>,

    /// Most bytes that may move, over all layers (incremental; needs --expert-bytes)
    #[arg(long, value_name = "B", allow_negative_numbers = true)]
    max_bytes: Option<Whole>,

    /// Leave a layer alone unless its largest rank load falls by this part (incremental) [default:
    /// 0.01]
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    min_gain: Option<f64>,

    /// Bytes of one expert's weights in one layer
    #[arg(long, value_name = "B", allow_negative_numbers = true)]
    expert_bytes: Option<Whole>,

    /// Relative speeds of the ranks, one for each
    #[arg(
        long,
        value_name = "S,S…",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    speeds: Vec<f64>,
}

impl SharedArguments {
    /// The ranks, of which `dead` are not live.
    pub(crate) fn cluster(&self, dead: &[Whole]) -> Result<Cluster, CliError> {
        let ranks = whole("--ranks", self.ranks)?;
        let mut cluster = Cluster::new(ranks, whole("--nodes", self.nodes)?).map_err(option)?;
        if !self.speeds.is_empty() {
            cluster = cluster
                .with_speeds(self.speeds.clone())
                .map_err(|error| match &error {
                    eplb::Error::Shape { .. } => option(error),
                    _ => about("--speeds", error),
                })?;
        }
        if !dead.is_empty() {
            let mut live = vec![true; ranks];
            for &rank in dead {
                let entry = usize::try_from(rank)
                    .ok()
                    .and_then(|rank| live.get_mut(rank));
                match entry {
                    Some(entry @ true) => *entry = false,
                    Some(_) => {
                        return Err(CliError::Usage(format!(
                            "--dead-ranks: rank {rank} is given twice; give each once"
                        )));
                    }
                    None => {
                        return Err(CliError::Usage(format!(
                            "--dead-ranks: there is no rank {rank}; ranks are 0 to {}",
                            ranks - 1
                        )));
                    }
                }
            }
            cluster = cluster
                .with_live(live)
                .map_err(|error| about("--dead-ranks", error))?;
        }
        Ok(cluster)
    }

    pub(crate) fn slots(&self) -> Result<Slots, CliError> {
        let slots = self.slots.iter().map(|slots| whole("--slots", *slots));
        let slots = slots.collect::<Result<Vec<usize>, _>>()?;
        Ok(match slots.as_slice() {
            [slots] => Slots::Same(*slots),
            _ => Slots::PerLayer(slots),
        })
    }

    pub(crate) fn groups(&self) -> Result<usize, CliError> {
        match whole("--groups", self.groups)? {
            0 => Err(CliError::Usage(
                "--groups: 0 groups; use 1 for a model without expert groups".into(),
            )),
            groups => Ok(groups),
        }
    }

    /// Bytes of an expert, if they are known.
    pub(crate) fn expert_bytes(&self) -> Result<Option<u64>, CliError> {
        let given = self.expert_bytes;
        given
            .map(|bytes| whole("--expert-bytes", bytes))
            .transpose()
    }

    /// The first option that limits moves.
    pub(crate) fn budget(&self) -> Option<&'static str> {
        let options = [
            ("--max-moves", self.max_moves.is_some()),
            ("--max-bytes", self.max_bytes.is_some()),
            ("--min-gain", self.min_gain.is_some()),
        ];
        let mut given = options.iter().filter(|(_, given)| *given);
        given.next().map(|(name, _)| *name)
    }

    pub(crate) fn planner(&self) -> Result<Box<dyn Planner>, CliError> {
        let given = self.budget();
        let max_moves = self.max_moves.map(|moves| whole("--max-moves", moves));
        let max_moves = max_moves.transpose()?;
        let max_bytes = self.max_bytes.map(|bytes| whole("--max-bytes", bytes));
        let max_bytes = max_bytes.transpose()?;
        let name = self.planner.unwrap_or(match given {
            Some(_) => PlannerName::Incremental,
            None => PlannerName::Refined,
        });
        if let Some(option) = given.filter(|_| name != PlannerName::Incremental) {
            return Err(CliError::Usage(format!(
                "{option} is for --planner incremental; leave one of them out"
            )));
        }
        if max_bytes.is_some() && self.expert_bytes()?.unwrap_or(0) == 0 {
            return Err(CliError::Usage(
                "--max-bytes: give the bytes of one expert with --expert-bytes".into(),
            ));
        }
        Ok(match name {
            PlannerName::Deepseek => Box::new(DeepSeek),
            PlannerName::Greedy => Box::new(Greedy),
            PlannerName::Refined => Box::new(Refined),
            PlannerName::Incremental => {
                let default = Incremental::default();
                Box::new(Incremental {
                    max_moves,
                    max_bytes,
                    minimum_gain: self.min_gain.unwrap_or(default.minimum_gain),
                    ..default
                })
            }
        })
    }
}

/// The mean of the windows, or `z` deviations above it.
pub(crate) fn summary(z: Option<f64>) -> Summary {
    z.map_or(Summary::Mean, |z| Summary::MeanPlusDeviation { z })
}
