//! `locum eplb plan`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use eplb::{Duplicates, HiddenLayers, Loads, Placement, Plan, Problem, RetainedExpert};
use serde_json::Value;

use super::arguments::{SharedArguments, Whole, summary, whole};
use super::blame::{Blame, about};
use super::{counted, figure, input, loads, moved, outputs, picture, table};
use crate::error::CliError;
use crate::output::{Kind, write_file};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Everything that is known of the plan
    Plan,
    /// SGLang's --init-expert-location
    Sglang,
    /// vLLM's initial expert map
    Vllm,
    /// vLLM Ascend's expert map
    VllmAscend,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n  locum eplb plan --load loads.json --ranks 32 --slots 288 --svg ranks.svg\n\nPrints a table, or JSON with --json. No placement can beat the lower bound;\nthe gap says how far above it the plan is."
)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    shared: SharedArguments,

    /// The placement in use: a plan of this command, or a file of SGLang, vLLM or vLLM Ascend
    #[arg(long, value_name = "PLAN")]
    current: Option<PathBuf>,

    /// Plan for the mean of the windows plus this many deviations
    #[arg(long, value_name = "Z", allow_negative_numbers = true)]
    z: Option<f64>,

    /// Ranks that are not live; their slots stay empty
    #[arg(
        long,
        value_name = "R,R…",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    dead_ranks: Vec<Whole>,

    /// Let experts that only dead ranks hold be loaded from the checkpoint
    #[arg(long)]
    reload: bool,

    /// Print the plan as JSON
    #[arg(long)]
    json: bool,

    /// Write the plan to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Format of the JSON that is printed or written [default: plan]
    #[arg(long, value_enum)]
    format: Option<OutputFormat>,

    /// Number of all hidden layers of the model, dense ones included (for files of SGLang)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    hidden_layers: Option<Whole>,

    /// Index of the model's first MoE layer; the others follow it (for files of SGLang) [default:
    /// 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    first_moe_layer: Option<Whole>,

    /// Draw the loads of all ranks before and after
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(arguments: &PlanArguments) -> Result<(), CliError> {
    let shared = &arguments.shared;
    let planner = shared.planner()?;
    let cluster = shared.cluster(&arguments.dead_ranks)?;
    let (slots, groups) = (shared.slots()?, shared.groups()?);
    let expert_bytes = shared.expert_bytes()?;
    check_used(arguments)?;
    outputs::check(
        [
            ("--out", arguments.out.as_deref()),
            ("--svg", arguments.svg.as_deref()),
        ],
        [
            ("--load", Some(&shared.load)),
            ("--current", arguments.current.as_deref()),
        ],
    )?;
    let loads = loads::read(&shared.load, shared.tensor.as_deref())?;
    let hidden = hidden_layers(arguments, loads.layers())?;
    let blame = Blame {
        load: &shared.load,
        current: arguments.current.as_deref(),
    };

    let ranks = cluster.ranks();
    let mut builder = Problem::builder(loads.clone(), cluster, slots)
        .groups(groups)
        .uneven(shared.uneven)
        .summary(summary(arguments.z))
        .expert_bytes(expert_bytes.unwrap_or(0))
        .reload(arguments.reload);
    if let Some(path) = &arguments.current {
        builder = builder.current(current(path, arguments, &loads, ranks, hidden.as_ref())?);
    }
    let problem = builder.build().map_err(|error| blame.error(error))?;
    let plan = planner.plan(&problem).map_err(|error| blame.error(error))?;

    // All is computed before anything is written.
    let document = match arguments.format() {
        OutputFormat::Plan => Ok(plan.to_json()),
        OutputFormat::Sglang => plan.placement.to_sglang(&hidden.unwrap_or(HiddenLayers {
            count: loads.layers(),
            moe: (0..loads.layers()).collect(),
        })),
        OutputFormat::Vllm => plan.placement.to_vllm(),
        OutputFormat::VllmAscend => plan.placement.to_vllm_ascend(),
    }
    .map_err(|error| about("--format", error))?;
    if let Some(path) = &arguments.svg {
        let drawing = picture::rank_loads(&plan, &before(&problem, &plan)?);
        write_file(path, Kind::Picture, drawing.as_bytes())?;
    }
    if let Some(path) = &arguments.out {
        write_file(path, Kind::Any, format!("{document}\n").as_bytes())?;
    }
    let text = if arguments.json {
        format!("{document}\n")
    } else {
        report(&plan, &problem, expert_bytes)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

impl PlanArguments {
    fn format(&self) -> OutputFormat {
        self.format.unwrap_or(OutputFormat::Plan)
    }
}

/// Refuses options that would change nothing.
fn check_used(arguments: &PlanArguments) -> Result<(), CliError> {
    let usage = |message: &str| Err(CliError::Usage(message.into()));
    if arguments.current.is_none() {
        if let Some(option) = arguments.shared.budget() {
            return usage(&format!(
                "{option}: moves are counted from the placement in use; give it with --current"
            ));
        }
        if arguments.reload {
            return usage(
                "--reload: experts are lost from the placement in use; give it with --current",
            );
        }
        if arguments.hidden_layers.is_some() && arguments.format() != OutputFormat::Sglang {
            return usage(UNUSED_HIDDEN_LAYERS);
        }
    }
    if arguments.first_moe_layer.is_some() && arguments.hidden_layers.is_none() {
        return usage("--first-moe-layer: give the number of all layers with --hidden-layers");
    }
    if arguments.format.is_some() && !arguments.json && arguments.out.is_none() {
        return usage("--format: the table has no other format; add --json or --out FILE");
    }
    Ok(())
}

const UNUSED_HIDDEN_LAYERS: &str = "--hidden-layers is for --format sglang, and for a --current file of SGLang that has a row for each of these layers; leave it out";

fn hidden_layers(
    arguments: &PlanArguments,
    layers: usize,
) -> Result<Option<HiddenLayers>, CliError> {
    const MOST: usize = 1 << 16;
    let Some(count) = arguments.hidden_layers else {
        return Ok(None);
    };
    let count: usize = whole("--hidden-layers", count)?;
    let first: usize = whole("--first-moe-layer", arguments.first_moe_layer.unwrap_or(0))?;
    if count > MOST {
        return Err(CliError::Usage(format!(
            "--hidden-layers: {count} is above the limit of {MOST}"
        )));
    }
    match first.checked_add(layers) {
        Some(end) if end <= count => Ok(Some(HiddenLayers {
            count,
            moe: (first..end).collect(),
        })),
        _ => Err(CliError::Usage(format!(
            "--hidden-layers: {} cannot hold {} from layer {first} on; layers count from 0",
            counted(count, "hidden layer"),
            counted(layers, "MoE layer")
        ))),
    }
}

/// Reads the placement in use. Ranks may have died since, and experts may be twice on a rank; but
/// its maps must agree.
fn current(
    path: &Path,
    arguments: &PlanArguments,
    loads: &Loads,
    ranks: usize,
    hidden: Option<&HiddenLayers>,
) -> Result<Placement, CliError> {
    let wrong = |error| about(&path.display().to_string(), error);
    let document = input::json(path)?;
    let experts: Vec<usize> = (0..loads.layers())
        .filter_map(|layer| loads.experts(layer))
        .collect();
    let (_, placement) = Placement::from_json(&document, &experts, ranks, hidden).map_err(wrong)?;
    placement.check_maps().map_err(wrong)?;
    let rows = document
        .get("physical_to_logical_map")
        .and_then(Value::as_array)
        .map(Vec::len);
    let used = arguments.format() == OutputFormat::Sglang
        || hidden.is_none_or(|hidden| rows == Some(hidden.count));
    if !used {
        return Err(CliError::Usage(UNUSED_HIDDEN_LAYERS.into()));
    }
    Ok(placement)
}

/// What the picture compares with: the current placement, or, without one that has all experts,
/// experts in order over the live slots, as engines start.
fn before(problem: &Problem, plan: &Plan) -> Result<picture::Before, CliError> {
    let known = plan
        .layers
        .iter()
        .map(|layer| layer.rank_loads_before.clone());
    if let Some(rank_loads) = known.collect() {
        return Ok(picture::Before {
            name: "current placement",
            rank_loads,
        });
    }
    let placement = in_order(problem, &plan.placement)?;
    let start = Plan::new("in order", problem, placement, Duplicates::Report, "")
        .map_err(|error| about("experts in order", error))?;
    let loads = start.layers.into_iter().map(|layer| layer.rank_loads);
    Ok(picture::Before {
        name: "experts in order",
        rank_loads: loads.collect(),
    })
}

/// Expert `i mod experts` in the `i`-th live slot.
pub(crate) fn in_order(problem: &Problem, like: &Placement) -> Result<Placement, CliError> {
    let mut maps = Vec::new();
    let mut experts = Vec::new();
    for layer in like.layers() {
        let mut next = 0;
        let mut map = Vec::with_capacity(layer.slots());
        for rank in 0..layer.ranks() {
            for _ in layer.rank(rank) {
                let live = problem.cluster().live()[rank];
                map.push(live.then_some(RetainedExpert((next % layer.experts()) as u32)));
                next += usize::from(live);
            }
        }
        maps.push(map);
        experts.push(layer.experts());
    }
    Placement::from_physical_to_logical(&maps, &experts, problem.cluster().ranks())
        .map_err(|error| about("experts in order", error))
}

fn report(plan: &Plan, problem: &Problem, expert_bytes: Option<u64>) -> String {
    let has_current = problem.current().is_some();
    let mut header = vec!["layer", "experts", "slots", "replicas", "mean load"];
    if has_current {
        header.push("before");
    }
    header.extend(["maximum", "bound", "gap %", "balance"]);
    if has_current {
        header.push("moves");
    }
    let rows: Vec<Vec<String>> = plan
        .layers
        .iter()
        .zip(plan.placement.layers())
        .enumerate()
        .map(|(index, (layer, placed))| {
            let counts =
                || (0..placed.experts() as u32).map(|expert| placed.count(RetainedExpert(expert)));
            let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
            let mut row = vec![
                index.to_string(),
                placed.experts().to_string(),
                placed.slots().to_string(),
                if least == most {
                    most.to_string()
                } else {
                    format!("{least}–{most}")
                },
                figure(layer.mean),
            ];
            if has_current {
                row.push(layer.maximum_before.map_or_else(|| "–".into(), figure));
            }
            row.extend([
                figure(layer.maximum),
                figure(layer.lower_bound.value),
                format!("{:.3}", layer.gap * 100.0),
                format!("{:.4}", layer.balancedness),
            ]);
            if has_current {
                row.push(layer.moves.to_string());
            }
            row
        })
        .collect();
    let mut text = table(&header, &rows);
    let mut totals = vec![
        ("planner", plan.planner.to_owned()),
        (
            "balancedness",
            match plan.balancedness_before {
                Some(before) => format!("{:.4} (before {before:.4})", plan.balancedness),
                None => format!("{:.4}", plan.balancedness),
            },
        ),
    ];
    if let Some(worst) = plan.worst_layer {
        totals.push((
            "worst layer",
            format!("{} with {:.4}", worst.layer, worst.balancedness),
        ));
    }
    totals.push(("lower bound", figure(plan.lower_bound)));
    totals.push(("gap", format!("{:.3} %", plan.gap * 100.0)));
    if has_current {
        totals.push(("moves", plan.moves.to_string()));
        totals.push(("bytes", moved(plan.bytes, expert_bytes)));
        let peak = plan.peak_extra_bytes.iter().copied().max().unwrap_or(0);
        let on_a_rank = if expert_bytes.is_some() {
            " on a rank"
        } else {
            ""
        };
        totals.push((
            "peak extra",
            format!("{}{on_a_rank}", moved(peak, expert_bytes)),
        ));
    }
    totals.push(("reason", plan.reason.clone()));
    text.push('\n');
    for (name, value) in totals {
        text += &format!("{name:<12}  {value}\n");
    }
    text
}
