//! `locum eplb plan`.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use eplb::{Duplicates, HiddenLayers, Loads, Placement, Plan, Problem, RetainedExpert};
use serde_json::Value;

use super::arguments::{SharedArguments, summary, wrong};
use super::{figure, loads, picture, table};
use crate::error::CliError;
use crate::output::{bytes, write_file};

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
    after_help = "Example:\n  locum eplb plan --load loads.json --ranks 32 --nodes 4 --slots 288 --svg ranks.svg\n\nThe plan is printed as a table, or as JSON with --json. Its lower bound is one that no placement of these\nexperts on these slots can beat; the gap says how far above it the plan is."
)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    shared: SharedArguments,

    /// The placement in use: a plan of this command, or a file of SGLang, vLLM or vLLM Ascend
    #[arg(long, value_name = "PLAN")]
    current: Option<PathBuf>,

    /// Plan for the mean of the windows plus this many deviations
    #[arg(long, value_name = "Z")]
    z: Option<f64>,

    /// Ranks that are not live; their slots stay empty
    #[arg(long, value_name = "R,R…", value_delimiter = ',')]
    dead_ranks: Vec<usize>,

    /// Let experts that only dead ranks hold be loaded from the checkpoint
    #[arg(long)]
    reload: bool,

    /// Print the plan as JSON
    #[arg(long)]
    json: bool,

    /// Write the plan to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Format of the JSON that is printed or written
    #[arg(long, value_enum, default_value_t = OutputFormat::Plan)]
    format: OutputFormat,

    /// Number of all hidden layers of the model, dense ones included (for --format sglang)
    #[arg(long, value_name = "N")]
    hidden_layers: Option<usize>,

    /// Index of the model's first MoE layer; the others follow it (for --format sglang)
    #[arg(long, value_name = "N", default_value_t = 0)]
    first_moe_layer: usize,

    /// Draw the loads of all ranks before and after
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(arguments: &PlanArguments) -> Result<(), CliError> {
    let shared = &arguments.shared;
    let planner = shared.planner()?;
    let cluster = shared.cluster(&arguments.dead_ranks)?;
    check_outputs(arguments)?;
    let loads = loads::read(&shared.load, shared.tensor.as_deref())?;
    let hidden = hidden_layers(arguments, loads.layers())?;
    let file = shared.load.display().to_string();

    let mut builder = Problem::builder(loads.clone(), cluster, shared.slots())
        .groups(shared.groups)
        .uneven(shared.uneven)
        .summary(summary(arguments.z))
        .expert_bytes(shared.expert_bytes)
        .reload(arguments.reload);
    if let Some(path) = &arguments.current {
        builder = builder.current(current(path, &loads, shared.ranks, hidden.as_ref())?);
    }
    let problem = builder.build().map_err(wrong(&file))?;
    if let (Some(path), Some(current)) = (&arguments.current, problem.current()) {
        check_current(path, current, &problem)?;
    }
    let plan = planner.plan(&problem).map_err(wrong(&file))?;

    // All is computed before anything is written.
    let document = match arguments.format {
        OutputFormat::Plan => Ok(plan.to_json()),
        OutputFormat::Sglang => plan.placement.to_sglang(&hidden.unwrap_or(HiddenLayers {
            count: loads.layers(),
            moe: (0..loads.layers()).collect(),
        })),
        OutputFormat::Vllm => plan.placement.to_vllm(),
        OutputFormat::VllmAscend => plan.placement.to_vllm_ascend(),
    }
    .map_err(wrong("--format"))?;
    if let Some(path) = &arguments.svg {
        let drawing = picture::rank_loads(&plan, &before(&problem, &plan)?);
        write_file(path, drawing.as_bytes())?;
    }
    if let Some(path) = &arguments.out {
        write_file(path, format!("{document}\n").as_bytes())?;
    }
    let text = if arguments.json {
        format!("{document}\n")
    } else {
        report(&plan, &problem)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Finds out that a file cannot be written before any is.
fn check_outputs(arguments: &PlanArguments) -> Result<(), CliError> {
    for path in [&arguments.out, &arguments.svg].into_iter().flatten() {
        if path.is_dir() {
            return Err(CliError::file(
                "write",
                path,
                "it is a directory; name a file",
            ));
        }
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        tempfile::tempfile_in(parent).map_err(|error| CliError::file("write", path, error))?;
    }
    match (&arguments.out, &arguments.svg) {
        (Some(out), Some(svg)) if out == svg => Err(CliError::Usage(format!(
            "--out and --svg both name {}; name two files",
            out.display()
        ))),
        _ => Ok(()),
    }
}

fn hidden_layers(
    arguments: &PlanArguments,
    layers: usize,
) -> Result<Option<HiddenLayers>, CliError> {
    let Some(count) = arguments.hidden_layers else {
        if arguments.first_moe_layer > 0 {
            return Err(CliError::Usage(
                "--first-moe-layer: give the number of all layers with --hidden-layers".into(),
            ));
        }
        return Ok(None);
    };
    let first = arguments.first_moe_layer;
    match first.checked_add(layers) {
        Some(end) if end <= count && count <= 1 << 16 => Ok(Some(HiddenLayers {
            count,
            moe: (first..end).collect(),
        })),
        _ => Err(CliError::Usage(format!(
            "--hidden-layers: {layers} MoE layers from layer {first} on do not fit {count} hidden layers"
        ))),
    }
}

fn current(
    path: &Path,
    loads: &Loads,
    ranks: usize,
    hidden: Option<&HiddenLayers>,
) -> Result<Placement, CliError> {
    let bytes = std::fs::read(path).map_err(|error| CliError::file("read", path, error))?;
    let document: Value = serde_json::from_slice(&bytes)
        .map_err(|error| CliError::Usage(format!("{}: not valid JSON: {error}", path.display())))?;
    let experts: Vec<usize> = (0..loads.layers())
        .filter_map(|layer| loads.experts(layer))
        .collect();
    let (_, placement) = Placement::from_json(&document, &experts, ranks, hidden)
        .map_err(wrong(&path.display().to_string()))?;
    Ok(placement)
}

/// A current placement may have ranks that died since, and experts that are twice on a rank; its
/// two maps must agree.
fn check_current(path: &Path, current: &Placement, problem: &Problem) -> Result<(), CliError> {
    match current.validate(problem, Duplicates::Report) {
        Err(error @ (eplb::Error::NotInverse { .. } | eplb::Error::TooManyReplicas { .. })) => {
            Err(CliError::Usage(format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
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
        .map_err(wrong("experts in order"))?;
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
        .map_err(wrong("experts in order"))
}

fn report(plan: &Plan, problem: &Problem) -> String {
    let moved = problem.current().is_some();
    let mut header = vec!["layer", "experts", "slots", "replicas", "mean load"];
    if moved {
        header.push("before");
    }
    header.extend(["maximum", "bound", "gap %", "balance"]);
    if moved {
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
            if moved {
                row.push(layer.maximum_before.map_or_else(|| "–".into(), figure));
            }
            row.extend([
                figure(layer.maximum),
                figure(layer.lower_bound.value),
                format!("{:.3}", layer.gap * 100.0),
                format!("{:.4}", layer.balancedness),
            ]);
            if moved {
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
    if moved {
        totals.push(("moves", plan.moves.to_string()));
        totals.push(("bytes", bytes(plan.bytes)));
        let peak = plan.peak_extra_bytes.iter().copied().max().unwrap_or(0);
        totals.push(("peak extra", format!("{} on a rank", bytes(peak))));
    }
    totals.push(("reason", plan.reason.clone()));
    text.push('\n');
    for (name, value) in totals {
        text += &format!("{name:<12}  {value}\n");
    }
    text
}
