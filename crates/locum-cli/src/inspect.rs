//! `locum inspect`: which experts are constants, and what that saves.

use std::io::Write;

use clap::Args;
use locum::models::{LayerMemory, LoadOptions, Model};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::bytes;
use crate::source::ModelArgument;

#[derive(Args)]
#[command(after_help = "Example:\n  locum inspect --model OLMoE-1B-7B-MoNE --json")]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    model: ModelArgument,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &InspectArguments) -> Result<(), CliError> {
    let files = arguments.model.files()?;
    let model = Model::plan(&files, &LoadOptions::default())?;
    let text = if arguments.json {
        format!(
            "{:#}\n",
            report(&model, &files.name().display().to_string())
        )
    } else {
        table(&model, &files.name().display().to_string())
    };
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

fn report(model: &Model, name: &str) -> Value {
    let memory = model.memory();
    let layers: Vec<Value> = memory
        .layers
        .iter()
        .map(|layer| {
            json!({
                "layer": layer.layer,
                "logical": layer.logical,
                "retained": layer.retained,
                "substituted": layer.substituted,
                "retained_bytes": layer.retained_bytes,
                "constant_bytes": layer.constant_bytes,
                "saved_bytes": layer.saved_bytes,
            })
        })
        .collect();
    json!({
        "model": name,
        "architecture": model.architecture().class,
        "model_type": model.architecture().model_type,
        "format": model.spec().format().map(|format| format.key()),
        "tensors": model.checkpoint().len(),
        "weights_bytes": memory.weights,
        "unpruned_weights_bytes": memory.unpruned_weights(),
        "saved_bytes": memory.saved_bytes(),
        "cache_bytes_per_token": memory.cache_per_token,
        "max_position_embeddings": model.limits().max_positions,
        "layers": layers,
    })
}

fn table(model: &Model, name: &str) -> String {
    let memory = model.memory();
    let format = model.spec().format().map_or_else(
        || "none: every expert is retained".into(),
        |format| format.to_string(),
    );
    let mut text = format!(
        "model         {name}\narchitecture  {}\nsubstitution  {format}\n\n",
        model.architecture().class
    );
    let rows: Vec<[String; 5]> = memory.layers.iter().map(row).collect();
    let total = |of: fn(&LayerMemory) -> usize| memory.layers.iter().map(of).sum::<usize>();
    let total = [
        "total".into(),
        total(|layer| layer.logical).to_string(),
        total(|layer| layer.retained.len()).to_string(),
        total(|layer| layer.substituted.len()).to_string(),
        bytes(memory.saved_bytes()),
    ];
    let head = ["layer", "logical", "retained", "substituted", "saved"].map(String::from);
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            [&head, &total]
                .into_iter()
                .chain(&rows)
                .map(|row| row[column].len())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut line = |cells: &[String; 5], ids: &str| {
        let cells: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        text.push_str(format!("{}  {ids}", cells.join("  ")).trim_end());
        text.push('\n');
    };
    line(&head, "substituted experts");
    for (row, layer) in rows.iter().zip(&memory.layers) {
        line(row, &ids(&layer.substituted));
    }
    line(&total, "");
    text.push_str(&format!(
        "\nweights {} in memory, {} if no expert were substituted\n",
        bytes(memory.weights),
        bytes(memory.unpruned_weights())
    ));
    text
}

fn row(layer: &LayerMemory) -> [String; 5] {
    [
        layer.layer.to_string(),
        layer.logical.to_string(),
        layer.retained.len().to_string(),
        layer.substituted.len().to_string(),
        bytes(layer.saved_bytes),
    ]
}

fn ids(experts: &[u32]) -> String {
    let ids: Vec<String> = experts.iter().map(u32::to_string).collect();
    ids.join(" ")
}
