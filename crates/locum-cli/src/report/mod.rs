//! `locum report`: a page about a model's experts.

mod bars;
mod colour;
mod figures;
mod heat_map;
mod markup;
mod model;
mod page;
mod statistics;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use clap::Args;
use locum::models::{LoadOptions, Model, ModelFiles};
use locum::prune::{Metric, Plan, Replacement, Statistics};

use crate::error::CliError;
use crate::output::{Kind, OutputFile, note};
use crate::place::{place, spare};
use figures::{Experts, Figures};
use heat_map::HeatMap;
use statistics::{Constants, Score, Substituted};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  locum report OLMoE-1B-7B-MoNE --out report.html --svg experts.svg\n  locum report stats.safetensors --model OLMoE-1B-7B-MoNE --out report.html"
)]
pub(crate) struct ReportArguments {
    /// A file of `locum calibrate`, or a model directory
    #[arg(value_name = "STATS|MODEL")]
    subject: PathBuf,

    /// With statistics: the model that was pruned by them, whose constants are marked and measured
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// With statistics: a plan of `locum prune --plan-out`, whose experts are marked, and measured with
    /// the constants that they would get
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    plan: Option<PathBuf>,

    /// With a plan: what stands in for an expert
    #[arg(long, value_name = "HOW", default_value = "mean", value_parser = REPLACEMENTS)]
    replace: String,

    /// With statistics: what the score is
    #[arg(long, value_name = "METRIC", default_value = "fusion", value_parser = METRICS)]
    metric: String,

    /// Where to write the page
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Where to write the heat maps as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

const REPLACEMENTS: [&str; 3] = ["mean", "zero", "least-squares"];

/// Those that statistics give.
const METRICS: [&str; 6] = [
    "fusion",
    "output_fluctuation",
    "routing_score",
    "frequency",
    "reap",
    "ean",
];

pub(crate) fn run(arguments: &ReportArguments) -> Result<(), CliError> {
    let given = [&arguments.model, &arguments.plan];
    let read: Vec<&Path> = std::iter::once(arguments.subject.as_path())
        .chain(given.into_iter().flatten().map(PathBuf::as_path))
        .collect();
    spare_inputs(arguments, &read)?;
    let figures = if arguments.subject.is_dir() {
        if read.len() > 1 {
            return Err(CliError::Usage(format!(
                "--model and --plan go with statistics, and {} is a model",
                arguments.subject.display()
            )));
        }
        model::figures(&open(&arguments.subject)?.1, &name(&arguments.subject))?
    } else {
        statistics_figures(arguments)?
    };
    write(arguments, &figures)
}

/// A model of which headers are read.
fn open(directory: &Path) -> Result<(ModelFiles, Model), CliError> {
    let files = ModelFiles::open(directory)?;
    let model = Model::plan(&files, &LoadOptions::default())?;
    Ok((files, model))
}

fn statistics_figures(arguments: &ReportArguments) -> Result<Figures, CliError> {
    let statistics = Statistics::open(&arguments.subject)?;
    let mut experts: Experts = statistics
        .layers
        .iter()
        .map(|layer| (layer.layer, layer.substituted.iter().copied().collect()))
        .collect();
    let mut constants = Constants::new();
    let mut saved = Vec::new();
    let mut substituted = "substituted";
    let mut title = format!("Calibration in {}", name(&arguments.subject));
    let mut facts = vec![("statistics", name(&arguments.subject))];
    if let Some(directory) = &arguments.model {
        let (files, model) = open(directory)?;
        statistics::same_layers(&statistics, &model)
            .map_err(|reason| CliError::file("use", directory, reason))?;
        if !statistics.are_of(&files, &model)? {
            let reason = "it is neither the model that the statistics are of nor made from it";
            return Err(CliError::file("use", directory, reason));
        }
        for (layer, substituted) in model::experts(&model) {
            experts.entry(layer).or_default().extend(substituted);
        }
        constants = model::constants(&model)?;
        title = format!("Experts of {}", name(directory));
        facts.push(("model", name(directory)));
        saved = model::saved(&model);
    }
    if let Some(file) = &arguments.plan {
        let plan = Plan::read(file)?;
        let replacement = match arguments.replace.as_str() {
            "zero" => Replacement::Zero,
            "least-squares" => Replacement::LeastSquares,
            _ => Replacement::Mean,
        };
        constants = statistics::planned(&statistics, &plan, replacement)
            .map_err(|reason| CliError::file("use", file, reason))?;
        for (layer, planned) in &constants {
            experts.entry(*layer).or_default().extend(planned.keys());
        }
        substituted = "replaced by the plan";
        title = format!("What {} replaces", name(file));
        facts.push(("plan", name(file)));
        facts.push(("constants", arguments.replace.clone()));
    }
    facts.extend(statistics::facts(&statistics));
    let metric: Metric = arguments.metric.parse()?;
    let score = Score {
        name: metric.name(),
        of: &|layer, expert| metric.of_statistics(layer, expert),
    };
    let substituted = Substituted {
        experts,
        constants,
        name: substituted,
    };
    let mut figures = statistics::figures(&statistics, &score, &substituted, title, facts)?;
    for (layer, saved) in figures.layers.iter_mut().zip(saved) {
        layer.saved = Some(saved);
    }
    Ok(figures)
}

/// The last part of a path, which says enough.
fn name(path: &Path) -> String {
    let last = std::fs::canonicalize(path).ok();
    let last = last.as_deref().unwrap_or(path);
    last.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

fn write(arguments: &ReportArguments, figures: &Figures) -> Result<(), CliError> {
    // Both places are tried before either is written.
    let out = OutputFile::create(&arguments.out, Kind::Page)?;
    let picture = arguments
        .svg
        .as_deref()
        .map(|path| OutputFile::create(path, Kind::Picture))
        .transpose()?;
    out.write(page::page(figures).as_bytes())?;
    if let Some(picture) = picture {
        let maps: Vec<&HeatMap> = figures.maps.iter().collect();
        let description = "A row per layer, a column per expert; what the colour of a cell says is above each map.";
        picture.write(heat_map::svg(&maps, &figures.title, description, true).as_bytes())?;
    }
    for path in [Some(&arguments.out), arguments.svg.as_ref()]
        .into_iter()
        .flatten()
    {
        note(&format!("wrote {}", path.display()));
    }
    Ok(())
}

/// Refuses to write over what is read, into a model, or both files to one place.
fn spare_inputs(arguments: &ReportArguments, read: &[&Path]) -> Result<(), CliError> {
    let outputs = [Some(arguments.out.as_path()), arguments.svg.as_deref()];
    for out in outputs.into_iter().flatten() {
        spare(out, read.iter().copied())?;
    }
    match &arguments.svg {
        Some(svg) if place(svg) == place(&arguments.out) => Err(CliError::Usage(format!(
            "--out and --svg both name {}; name another file with --svg",
            svg.display()
        ))),
        _ => Ok(()),
    }
}
