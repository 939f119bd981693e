//! What calibration statistics say, with what a plan or a pruned model makes of it.

use std::collections::BTreeMap;

use locum::models::Model;
use locum::prune::{ExpertStatistics, LayerStatistics, Plan, PruneError, Replacement, Statistics};
use locum::substitution::RouteTable;

use super::figures::{Experts, Figures, LayerFigures};
use super::heat_map::{Cell, HeatMap, Row};

/// What experts are ranked by.
pub(super) struct Score<'a> {
    pub(super) name: &'a str,
    pub(super) of: &'a dyn Fn(&LayerStatistics, &ExpertStatistics) -> Option<f64>,
}

/// Constants of experts that are substituted after calibration, `[hidden]` each, by layer.
pub(super) type Constants = BTreeMap<u32, BTreeMap<u32, Vec<f64>>>;

/// The experts that are constants, and what is said of them.
pub(super) struct Substituted {
    pub(super) experts: Experts,
    pub(super) constants: Constants,
    pub(super) name: &'static str,
}

impl Substituted {
    fn contains(&self, layer: u32, expert: u32) -> bool {
        self.experts
            .get(&layer)
            .is_some_and(|experts| experts.contains(&expert))
    }
}

/// Refuses a model of other layers than those that were counted, and says in what they differ.
pub(super) fn same_layers(statistics: &Statistics, model: &Model) -> Result<(), String> {
    let layers = model.moe_layers().iter().map(|(layer, _)| layer);
    let experts: Vec<_> = layers
        .clone()
        .map(|layer| (layer.layer, layer.num_logical_experts as usize))
        .collect();
    same(statistics, "the model", &experts)?;
    for (counted, layer) in statistics.layers.iter().zip(layers) {
        if counted.hidden != layer.hidden_size {
            return Err(format!(
                "the statistics are of a hidden size of {} in layer {}, the model has {}",
                counted.hidden, layer.layer, layer.hidden_size
            ));
        }
    }
    Ok(())
}

/// The constants of the experts that a plan replaces; zeros where none was routed to.
pub(super) fn planned(
    statistics: &Statistics,
    plan: &Plan,
    replacement: Replacement,
) -> Result<Constants, String> {
    let layers = plan.layers.iter();
    let layers = layers.map(|layer| (layer.layer, layer.num_logical_experts as usize));
    same(statistics, "the plan", &layers.collect::<Vec<_>>())?;
    let mut constants = Constants::new();
    for (layer, planned) in statistics.layers.iter().zip(&plan.layers) {
        let of_layer = constants.entry(layer.layer).or_default();
        for id in planned.ids() {
            let expert = layer.experts.get(id as usize).ok_or_else(|| {
                format!(
                    "the plan replaces expert {id} of layer {}, which has {}",
                    layer.layer,
                    layer.experts.len()
                )
            })?;
            if layer.substituted.contains(&id) {
                return Err(format!(
                    "the plan replaces expert {id} of layer {}, which was a constant already while \
                     calibrating",
                    layer.layer
                ));
            }
            let constant = replacement.of_statistics(expert);
            of_layer.insert(id, constant.unwrap_or_else(|| vec![0.0; layer.hidden]));
        }
        let substituted = planned.ids().chain(layer.substituted.iter().copied());
        RouteTable::new(layer.experts.len() as u32, &substituted.collect::<Vec<_>>())
            .map_err(|error| format!("the plan's layer {}: {error}", layer.layer))?;
    }
    Ok(constants)
}

/// Layers with their numbers of experts must be those that were counted.
fn same(statistics: &Statistics, what: &str, found: &[(u32, usize)]) -> Result<(), String> {
    let counted = &statistics.layers;
    if counted.len() != found.len() {
        return Err(format!(
            "the statistics are of {} MoE layers, {what} has {}",
            counted.len(),
            found.len()
        ));
    }
    let differs = |(layer, found): &(&LayerStatistics, &(u32, usize))| {
        (layer.layer, layer.experts.len()) != **found
    };
    match counted.iter().zip(found).find(differs) {
        None => Ok(()),
        Some((layer, (other, experts))) => Err(format!(
            "the statistics are of {} experts in layer {}, {what} has {experts} in layer {other}",
            layer.experts.len(),
            layer.layer
        )),
    }
}

/// What the statistics were made of.
pub(super) fn facts(statistics: &Statistics) -> Vec<(&'static str, String)> {
    let origin = &statistics.origin;
    let counted = match origin.is_complete() {
        true => origin.sequences.to_string(),
        false => format!("{} of {}", origin.counted(), origin.sequences),
    };
    let order = match origin.seed {
        Some(seed) => format!("drawn with seed {seed}"),
        None => "in the order of the text".into(),
    };
    let short = |hash: &str| hash.chars().take(16).collect::<String>();
    vec![
        (
            "sequences",
            format!("{counted}, each of {} tokens, {order}", origin.length),
        ),
        ("activations", origin.activations.clone()),
        ("kernels", origin.kernels.clone()),
        ("model’s fingerprint", short(&origin.model)),
        ("text’s fingerprint", short(&origin.text)),
    ]
}

pub(super) fn figures(
    statistics: &Statistics,
    score: &Score<'_>,
    substituted: &Substituted,
    title: String,
    facts: Vec<(&'static str, String)>,
) -> Result<Figures, PruneError> {
    let layers = statistics.layers.iter();
    let layers: Vec<LayerFigures> = layers
        .map(|layer| of_layer(layer, substituted))
        .collect::<Result<_, _>>()?;
    let map = |id,
               title: &str,
               unit: String,
               value: &dyn Fn(&LayerStatistics, &ExpertStatistics) -> Option<f64>| {
        let rows = statistics.layers.iter().map(|layer| Row {
            layer: layer.layer,
            cells: (0..)
                .zip(&layer.experts)
                .map(|(id, expert)| cell(layer, id, expert, value, substituted))
                .collect(),
        });
        HeatMap {
            id,
            title: title.to_owned(),
            unit,
            without: Some("never routed, or a constant already"),
            rows: rows.collect(),
            marked: Some(substituted.name),
        }
    };
    let maps = vec![
        map(
            "score",
            "Score of each expert",
            format!("{} score", score.name),
            &|layer, expert| {
                (expert.tokens > 0)
                    .then(|| (score.of)(layer, expert))
                    .flatten()
            },
        ),
        map(
            "frequency",
            "How often each expert is chosen",
            "% of tokens".into(),
            &|layer, expert| Some(100.0 * expert.tokens as f64 / layer.tokens.max(1) as f64),
        ),
    ];
    let count = |of: fn(&LayerFigures) -> usize| layers.iter().map(of).sum::<usize>();
    let experts = count(|layer| layer.experts);
    let gone = count(|layer| layer.substituted.len());
    let lead = match gone {
        0 => format!("{experts} experts in {} layers.", layers.len()),
        _ => format!(
            "{gone} of {experts} experts in {} layers are {}.",
            layers.len(),
            substituted.name
        ),
    };
    Ok(Figures {
        title,
        lead,
        facts,
        maps,
        layers,
        substituted: substituted.name,
    })
}

fn cell(
    layer: &LayerStatistics,
    id: u32,
    expert: &ExpertStatistics,
    value: &dyn Fn(&LayerStatistics, &ExpertStatistics) -> Option<f64>,
    substituted: &Substituted,
) -> Cell {
    let already = layer.substituted.contains(&id);
    let known = value(layer, expert);
    let note = if already {
        Some("a constant while calibrating")
    } else if expert.tokens == 0 {
        Some("never routed")
    } else {
        None
    };
    Cell {
        value: known,
        marked: substituted.contains(layer.layer, id),
        note,
    }
}

fn of_layer(
    layer: &LayerStatistics,
    substituted: &Substituted,
) -> Result<LayerFigures, PruneError> {
    let gone: Vec<u32> = substituted
        .experts
        .get(&layer.layer)
        .map(|experts| experts.iter().copied().collect())
        .unwrap_or_default();
    let part = |of: &dyn Fn(&ExpertStatistics) -> f64| {
        let all: f64 = layer.experts.iter().map(of).sum();
        let gone = gone.iter().filter_map(|&id| layer.experts.get(id as usize));
        let part: f64 = gone.map(of).sum();
        if all > 0.0 { part / all } else { 0.0 }
    };
    let constants = substituted.constants.get(&layer.layer);
    let any = substituted
        .experts
        .values()
        .any(|experts| !experts.is_empty());
    let error = match constants {
        Some(constants) => layer.output_error(constants)?.relative(),
        None => 0.0,
    };
    Ok(LayerFigures {
        layer: layer.layer,
        experts: layer.experts.len(),
        never_routed: Some(
            layer
                .experts
                .iter()
                .filter(|expert| expert.tokens == 0)
                .count(),
        ),
        route_share: any.then(|| part(&|expert| expert.tokens as f64)),
        weight_share: any.then(|| part(&|expert| expert.score_sum)),
        error: (!substituted.constants.is_empty()).then_some(error),
        norms: constants.and_then(|constants| norms(constants.values())),
        saved: None,
        substituted: gone,
    })
}

/// The smallest and the largest norm; none where there is no constant.
pub(super) fn norms<'a>(constants: impl Iterator<Item = &'a Vec<f64>>) -> Option<(f64, f64)> {
    constants
        .map(|constant| norm(constant))
        .fold(None, |range, norm| {
            let (low, high) = range.unwrap_or((norm, norm));
            Some((low.min(norm), high.max(norm)))
        })
}

pub(super) fn norm(constant: &[f64]) -> f64 {
    constant
        .iter()
        .map(|value| value * value)
        .sum::<f64>()
        .sqrt()
}
