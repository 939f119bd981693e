//! What a model's files say: which experts are constants, how large those are, what that saves.

use std::collections::BTreeMap;

use locum::models::{LayerMemory, Model};
use locum::prune::stored_constants;

use super::figures::{Experts, Figures, LayerFigures};
use super::heat_map::{Cell, HeatMap, Row};
use super::statistics::{Constants, norm, norms};
use crate::error::CliError;
use crate::output::bytes;

/// The substituted experts of a model.
pub(super) fn experts(model: &Model) -> Experts {
    let layers = model.memory().layers.iter();
    layers
        .map(|layer| (layer.layer, layer.substituted.iter().copied().collect()))
        .collect()
}

/// Bytes that constants save, by layer.
pub(super) fn saved(model: &Model) -> Vec<u64> {
    let layers = model.memory().layers.iter();
    layers.map(|layer| layer.saved_bytes).collect()
}

/// The constants of a model, by layer.
pub(super) fn constants(model: &Model) -> Result<Constants, CliError> {
    let mut constants = Constants::new();
    for (of, values) in stored_constants(model)? {
        let values = values.into_iter().map(f64::from).collect();
        constants
            .entry(of.layer)
            .or_default()
            .insert(of.expert, values);
    }
    Ok(constants)
}

pub(super) fn figures(model: &Model, name: &str) -> Result<Figures, CliError> {
    let memory = model.memory();
    let constants = constants(model)?;
    let none = BTreeMap::new();
    let of = |layer: &LayerMemory| constants.get(&layer.layer).unwrap_or(&none);
    let layers: Vec<LayerFigures> = memory
        .layers
        .iter()
        .map(|layer| LayerFigures {
            layer: layer.layer,
            experts: layer.logical,
            substituted: layer.substituted.clone(),
            never_routed: None,
            route_share: None,
            weight_share: None,
            error: None,
            saved: Some(layer.saved_bytes),
            norms: norms(of(layer).values()),
        })
        .collect();
    let rows = memory.layers.iter().map(|layer| Row {
        layer: layer.layer,
        cells: (0..layer.logical as u32)
            .map(|expert| {
                let constant = of(layer).get(&expert);
                let substituted = layer.substituted.binary_search(&expert).is_ok();
                Cell {
                    value: constant.map(|constant| norm(constant)),
                    marked: substituted,
                    note: (!substituted).then_some("retained"),
                }
            })
            .collect(),
    });
    let map = HeatMap {
        id: "constants",
        title: "Substituted experts".into(),
        unit: "norm of the constant".into(),
        without: Some("retained"),
        rows: rows.collect(),
        marked: Some("substituted"),
    };
    let experts: usize = layers.iter().map(|layer| layer.experts).sum();
    let substituted: usize = layers.iter().map(|layer| layer.substituted.len()).sum();
    let format = model.spec().format();
    let mut facts = vec![
        ("model", name.to_owned()),
        ("architecture", model.architecture().class.to_owned()),
        (
            "substitution",
            format.map_or_else(|| "none".into(), |format| format.to_string()),
        ),
        ("weights in memory", bytes(memory.weights)),
    ];
    if substituted > 0 {
        facts.push(("without substitution", bytes(memory.unpruned_weights())));
    }
    Ok(Figures {
        title: format!("Experts of {name}"),
        lead: match substituted {
            0 => format!(
                "All {experts} experts in {} layers are retained.",
                layers.len()
            ),
            _ => format!(
                "{substituted} of {experts} experts in {} layers are constants, which saves {}.",
                layers.len(),
                bytes(memory.saved_bytes())
            ),
        },
        facts,
        maps: vec![map],
        layers,
        substituted: "substituted",
    })
}
