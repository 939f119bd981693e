//! Arguments that planning and replaying share.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use eplb::{Cluster, DeepSeek, Greedy, Incremental, Planner, Refined, Slots, Summary};

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

#[derive(Args)]
pub(crate) struct SharedArguments {
    /// Loads: JSON or CSV or safetensors, [layers][experts] or [windows][layers][experts]
    #[arg(long, value_name = "FILE")]
    pub(crate) load: PathBuf,

    /// The tensor with the loads, where a safetensors file has several
    #[arg(long, value_name = "NAME")]
    pub(crate) tensor: Option<String>,

    /// Number of expert-parallel ranks
    #[arg(long, value_name = "N")]
    pub(crate) ranks: usize,

    /// Number of nodes that the ranks are on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) nodes: usize,

    /// Expert slots of a layer over all ranks: one number, or one for each layer
    #[arg(long, value_name = "N[,N…]", value_delimiter = ',', required = true)]
    pub(crate) slots: Vec<usize>,

    /// Allow slots that are not a multiple of the ranks
    #[arg(long)]
    pub(crate) uneven: bool,

    /// Expert groups (n_group of the model); kept on nodes where they divide by these
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) groups: usize,

    /// How to plan; incremental if there is a budget, else refined
    #[arg(long, value_enum)]
    pub(crate) planner: Option<PlannerName>,

    /// Most experts that may move, over all layers (incremental)
    #[arg(long, value_name = "N")]
    pub(crate) max_moves: Option<usize>,

    /// Most bytes that may move, over all layers (incremental; needs --expert-bytes)
    #[arg(long, value_name = "B")]
    pub(crate) max_bytes: Option<u64>,

    /// Leave a layer alone unless its largest rank load falls by this part (incremental) [default:
    /// 0.01]
    #[arg(long, value_name = "PART")]
    pub(crate) min_gain: Option<f64>,

    /// Bytes of one expert's weights in one layer
    #[arg(long, value_name = "B", default_value_t = 0)]
    pub(crate) expert_bytes: u64,

    /// Relative speeds of the ranks, one for each
    #[arg(long, value_name = "S,S…", value_delimiter = ',')]
    pub(crate) speeds: Vec<f64>,
}

impl SharedArguments {
    /// The ranks, of which `dead` are not live.
    pub(crate) fn cluster(&self, dead: &[usize]) -> Result<Cluster, CliError> {
        let mut cluster =
            Cluster::new(self.ranks, self.nodes).map_err(wrong("--ranks, --nodes"))?;
        if !self.speeds.is_empty() {
            cluster = cluster
                .with_speeds(self.speeds.clone())
                .map_err(wrong("--speeds"))?;
        }
        if !dead.is_empty() {
            let mut live = vec![true; self.ranks];
            for rank in dead {
                let Some(entry) = live.get_mut(*rank) else {
                    return Err(CliError::Usage(format!(
                        "--dead-ranks: there is no rank {rank}; ranks are 0 to {}",
                        self.ranks - 1
                    )));
                };
                *entry = false;
            }
            cluster = cluster.with_live(live).map_err(wrong("--dead-ranks"))?;
        }
        Ok(cluster)
    }

    pub(crate) fn slots(&self) -> Slots {
        match self.slots.as_slice() {
            [slots] => Slots::Same(*slots),
            slots => Slots::PerLayer(slots.to_vec()),
        }
    }

    pub(crate) fn planner(&self) -> Result<Box<dyn Planner>, CliError> {
        let budget = [
            ("--max-moves", self.max_moves.is_some()),
            ("--max-bytes", self.max_bytes.is_some()),
            ("--min-gain", self.min_gain.is_some()),
        ];
        let given = budget
            .iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| *name);
        let name = self.planner.unwrap_or(match given {
            Some(_) => PlannerName::Incremental,
            None => PlannerName::Refined,
        });
        if let Some(option) = given.filter(|_| name != PlannerName::Incremental) {
            return Err(CliError::Usage(format!(
                "{option} is for --planner incremental; leave one of them out"
            )));
        }
        if self.max_bytes.is_some() && self.expert_bytes == 0 {
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
                    max_moves: self.max_moves,
                    max_bytes: self.max_bytes,
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

/// An error of the library, with the argument or file that it is about, and the option that allows
/// what it mentions.
pub(crate) fn wrong(what: &str) -> impl Fn(eplb::Error) -> CliError + '_ {
    move |error| {
        let option = match error {
            eplb::Error::UnevenSlots { .. } => " (--uneven)",
            eplb::Error::NoSource { .. } => " (--reload)",
            _ => "",
        };
        CliError::Usage(format!("{what}: {error}{option}"))
    }
}
