//! What an observer sees of a model's experts, against transformers and against the layers' own sums.
#![allow(clippy::unwrap_used)]

use locum::models::{Logits, Model};
use locum::nn::{DType, ExpertObserver, Observation};
use locum::substitution::{Route, RouteTable};
use locum_tests::{EditedModel, Reference, cases, distance, fixture, full_logits, load};

/// Keeps all that it sees.
#[derive(Default)]
struct Recorder {
    wants_outputs: bool,
    layers: Vec<Recorded>,
}

struct Recorded {
    layer: u32,
    table: RouteTable,
    ids: Vec<i64>,
    weights: Vec<f32>,
    top_k: usize,
    /// Of each route to a retained expert.
    outputs: Vec<Option<Vec<f32>>>,
}

impl ExpertObserver for Recorder {
    fn wants_outputs(&self) -> bool {
        self.wants_outputs
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let routes = observation.routes;
        let outputs = routes.ids.iter().enumerate().map(|(place, &id)| {
            let outputs = observation.outputs.as_ref()?;
            let token = place / routes.top_k;
            outputs.of_token(token, id as u32).map(<[f32]>::to_vec)
        });
        self.layers.push(Recorded {
            layer: observation.layer,
            table: observation.table.clone(),
            outputs: outputs.collect(),
            ids: routes.ids.clone(),
            weights: routes.weights.clone(),
            top_k: routes.top_k,
        });
    }
}

fn observed(model: &Model, ids: &[Vec<i64>], wants_outputs: bool) -> (Vec<f32>, Vec<Recorded>) {
    let mut recorder = Recorder {
        wants_outputs,
        ..Recorder::default()
    };
    let mut caches = vec![model.new_cache(); ids.len()];
    let logits = model.logits_observed(ids, &mut caches, Logits::All, Some(&mut recorder));
    (logits.unwrap(), recorder.layers)
}

fn input_ids(name: &str) -> Vec<Vec<i64>> {
    let base = format!("{}/base", name.split_once('/').unwrap().0);
    Reference::open(&fixture(&base)).rows("input_ids")
}

/// Routes by id within each token: their order means nothing.
fn sorted(ids: &[i64], weights: &[f32], top_k: usize) -> (Vec<i64>, Vec<f32>) {
    let mut routes: Vec<(usize, i64, f32)> = (ids.iter().zip(weights).enumerate())
        .map(|(place, (&id, &weight))| (place / top_k, id, weight))
        .collect();
    routes.sort_by_key(|&(token, id, _)| (token, id));
    routes
        .into_iter()
        .map(|(_, id, weight)| (id, weight))
        .unzip()
}

#[test]
fn every_layer_is_seen_in_every_architecture_and_nothing_changes() {
    for case in cases() {
        let model = load(&fixture(case.name), DType::F32);
        let ids = input_ids(case.name);
        let (logits, layers) = observed(&model, &ids, true);
        assert_eq!(logits, full_logits(&model, &ids), "{}", case.name);
        let seen: Vec<u32> = layers.iter().map(|layer| layer.layer).collect();
        let expected: Vec<u32> = model.moe_layers().iter().map(|(i, _)| i.layer).collect();
        assert_eq!(seen, expected, "{}", case.name);
        let tokens = ids.concat().len();
        for layer in layers {
            assert_eq!(layer.ids.len(), tokens * layer.top_k, "{}", case.name);
            for (&id, output) in layer.ids.iter().zip(&layer.outputs) {
                let retained = matches!(layer.table.route(id), Route::Retained(_));
                assert_eq!(output.is_some(), retained, "{} {id}", case.name);
            }
        }
    }
}

#[test]
fn routes_and_outputs_are_those_of_transformers() {
    let reference = Reference::open(&fixture("olmoe/approx"));
    let constants = EditedModel::of_fixture("olmoe/approx").tensors;
    let model = load(&fixture("olmoe/approx"), DType::F32);
    let (_, layers) = observed(&model, &input_ids("olmoe/approx"), true);
    assert_eq!(layers.len(), 3);
    for layer in layers {
        let name = |what: &str| format!("debug.{}.{what}", layer.layer);
        let (_, ids) = reference.i64(&name("top_k_index"));
        let (_, weights) = reference.f32(&name("top_k_weights"));
        let (found_ids, found_weights) = sorted(&layer.ids, &layer.weights, layer.top_k);
        let (ids, weights) = sorted(&ids, &weights, layer.top_k);
        assert_eq!(found_ids, ids, "layer {}", layer.layer);
        assert!(distance(&found_weights, &weights) <= 1e-5);
        // Weighted, and with constants in the place of what is not there, outputs add up.
        let (shape, expected) = reference.f32(&name("output"));
        let hidden = shape[1];
        let mut sums = vec![0.0f32; expected.len()];
        for (place, (&id, output)) in layer.ids.iter().zip(&layer.outputs).enumerate() {
            let prefix = format!("model.layers.{}.mlp.experts", layer.layer);
            let constant = || constants[&format!("{prefix}.{id}.approx_value")].elements();
            let output = output.clone().unwrap_or_else(constant);
            let sums = &mut sums[place / layer.top_k * hidden..][..hidden];
            for (sum, y) in sums.iter_mut().zip(&output) {
                *sum += layer.weights[place] * y;
            }
        }
        let distance = distance(&sums, &expected);
        assert!(distance <= 2e-5, "layer {}: off by {distance}", layer.layer);
    }
}

#[test]
fn outputs_are_left_out_where_nobody_wants_them() {
    let model = load(&fixture("olmoe/base"), DType::F32);
    let ids = input_ids("olmoe/base");
    let (_, layers) = observed(&model, &ids, false);
    let (_, with_outputs) = observed(&model, &ids, true);
    for (layer, other) in layers.iter().zip(&with_outputs) {
        assert_eq!((&layer.ids, &layer.weights), (&other.ids, &other.weights));
        assert!(layer.outputs.iter().all(Option::is_none));
        assert!(other.outputs.iter().all(Option::is_some));
    }
}

#[test]
fn logits_can_be_left_out() {
    for name in ["olmoe/base", "deepseek_v4/base"] {
        let model = load(&fixture(name), DType::F32);
        let ids = input_ids(name);
        let mut caches = vec![model.new_cache(); ids.len()];
        let logits = model.logits(&ids, &mut caches, Logits::None).unwrap();
        assert!(logits.is_empty(), "{name}");
        // The sequences go on as if logits had been given.
        let next = vec![vec![1]; ids.len()];
        let found = model.logits(&next, &mut caches, Logits::Last).unwrap();
        let mut others = vec![model.new_cache(); ids.len()];
        model.logits(&ids, &mut others, Logits::All).unwrap();
        let expected = model.logits(&next, &mut others, Logits::Last).unwrap();
        assert_eq!(found, expected, "{name}");
    }
}
