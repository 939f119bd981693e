//! The whole use: declare, wrap, load, check, run; then records and updates.
#![allow(clippy::unwrap_used)]

use locum::burn::module::{Module, ModuleVisitor, Param};
use locum::burn::tensor::Tensor;
use locum::nn::Device;
use locum::prelude::*;
use locum::{NamedTensor, substitution::SkipRule};
use locum_downstream::{Mixtures, SubstitutedMixtures};
use serde_json::json;

/// Two layers of four experts; expert 1 of layer 0 and experts 0 and 2 of layer 1 are constants.
fn spec() -> SubstitutionSpec {
    let config = json!({ "approximate_experts": { "0": [1], "1": [0, 2] } });
    SubstitutionSpec::from_config(&config).unwrap()
}

fn wrapped() -> SubstitutedMixtures {
    SubstitutedMixtures::try_new(Mixtures::new(2, &Device::flex()), &spec()).unwrap()
}

/// A router whose logits are the token's two elements and their negations; retained experts compute
/// `silu(1 · x₀) · x₀` in every element; constants are `(10·layer + expert, −1)`.
fn checkpoint() -> Vec<NamedTensor> {
    let mut tensors = vec![NamedTensor::from_f32("norm.weight", [2], &[1.0, 2.0]).unwrap()];
    for (layer, substituted) in [(0, &[1][..]), (1, &[0, 2])] {
        let prefix = format!("model.layers.{layer}.mlp");
        let mut add = |name: String, shape: &[usize], values: &[f32]| {
            tensors.push(NamedTensor::from_f32(name, shape, values).unwrap());
        };
        add(
            format!("{prefix}.gate.weight"),
            &[4, 2],
            &[1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0, -1.0],
        );
        for expert in 0..4 {
            let prefix = format!("{prefix}.experts.{expert}");
            if substituted.contains(&expert) {
                let value = [(10 * layer + expert) as f32, -1.0];
                add(format!("{prefix}.approx_value"), &[2], &value);
                continue;
            }
            let first = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
            add(format!("{prefix}.gate_proj.weight"), &[3, 2], &first);
            add(format!("{prefix}.up_proj.weight"), &[3, 2], &first);
            add(
                format!("{prefix}.down_proj.weight"),
                &[2, 3],
                &[1.0 / 3.0; 6],
            );
        }
    }
    tensors
}

fn load(model: &mut SubstitutedMixtures, tensors: Vec<NamedTensor>) -> locum::Loaded {
    model
        .load_weights(&mut tensors.into_iter().map(Ok))
        .unwrap()
}

fn loaded() -> SubstitutedMixtures {
    let mut model = wrapped();
    load(&mut model, checkpoint());
    model.process_weights_after_loading().unwrap();
    model
}

fn forward(model: &Mixtures, token: [f32; 2]) -> Vec<f32> {
    let x = Tensor::<2>::from_data([token], &Device::flex());
    model.forward(x).into_data().iter::<f32>().collect()
}

/// The same, in f64 and straight from the definition.
fn oracle(token: [f64; 2]) -> Vec<f64> {
    let mut x = token;
    for (layer, substituted) in [(0, &[1usize][..]), (1, &[0, 2])] {
        let logits = [x[0], x[1], -x[0], -x[1]];
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        let mut order = [0, 1, 2, 3];
        order.sort_by(|&a: &usize, &b| logits[b].total_cmp(&logits[a]));
        let mut y = [0.0, 0.0];
        for &expert in &order[..2] {
            let weight = logits[expert].exp() / sum;
            let computed = x[0] / (1.0 + (-x[0]).exp()) * x[0];
            let output = if substituted.contains(&expert) {
                [(10 * layer + expert) as f64, -1.0]
            } else {
                [computed, computed]
            };
            y = [y[0] + weight * output[0], y[1] + weight * output[1]];
        }
        x = [x[0] + y[0], x[1] + y[1]];
    }
    let rms = ((x[0] * x[0] + x[1] * x[1]) / 2.0).sqrt();
    vec![x[0] / rms, x[1] / rms * 2.0]
}

#[test]
fn output_is_what_the_definition_says() {
    let model = loaded();
    for token in [[0.5, 0.25], [-0.5, 2.0], [0.1, -3.0], [-1.0, -2.0]] {
        let found = forward(&model, token);
        let expected = oracle(token.map(f64::from));
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{token:?}");
        }
    }
}

#[test]
fn loaded_parameters_are_named_with_the_constants_among_them() {
    let loaded = load(&mut wrapped(), checkpoint());
    let names: Vec<String> = loaded.parameters.unwrap().into_iter().collect();
    assert_eq!(
        names,
        [
            "layers.0.mlp.experts.down_proj",
            "layers.0.mlp.experts.gate_up_proj",
            "layers.0.mlp.experts.values",
            "layers.0.mlp.gate.weight",
            "layers.1.mlp.experts.down_proj",
            "layers.1.mlp.experts.gate_up_proj",
            "layers.1.mlp.experts.values",
            "layers.1.mlp.gate.weight",
            "norm.weight",
        ]
    );
    assert!(loaded.skipped.is_empty());
}

#[test]
fn parameter_paths_are_the_models_own() {
    #[derive(Default)]
    struct Paths(Vec<String>, Vec<String>);
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.1.push(self.0.join("."));
        }
    }
    let model = loaded();
    let (mut outer, mut inner) = (Paths::default(), Paths::default());
    model.visit(&mut outer);
    Module::visit(&model.clone().into_inner(), &mut inner);
    assert_eq!(outer.1, inner.1);
    assert!(outer.1.contains(&"layers.1.mlp.experts.values".to_owned()));
    assert_eq!(model.num_params(), model.clone().into_inner().num_params());
}

#[test]
fn record_of_the_wrapper_loads_in_the_model_and_back() {
    let token = [-0.5, 2.0];
    let expected = forward(&loaded(), token);
    let model = wrapped().into_inner().load_record(loaded().into_record());
    assert_eq!(forward(&model, token), expected);
    let wrapper = wrapped().load_record(loaded().into_inner().into_record());
    assert_eq!(forward(&wrapper, token), expected);
    let bytes = loaded().into_record().into_bytes().unwrap();
    let record = locum::burn::store::ModuleRecord::from_bytes(bytes).unwrap();
    assert_eq!(forward(&wrapped().load_record(record), token), expected);
}

#[test]
fn one_constant_changes_and_nothing_else() {
    let mut model = loaded();
    // The token (−0.5, 2) goes to experts 1 and 2 of layer 0: the constant of expert 1 counts.
    let (touched, untouched) = ([-0.5, 2.0], [1.0, -2.0]);
    let before = (forward(&model, touched), forward(&model, untouched));
    let constant = NamedTensor::from_f32(
        "model.layers.0.mlp.experts.1.approx_value",
        [2],
        &[5.0, 5.0],
    );
    let loaded = load(&mut model, vec![constant.unwrap()]);
    assert_eq!(
        loaded.parameters.unwrap().into_iter().collect::<Vec<_>>(),
        ["layers.0.mlp.experts.values"]
    );
    model.process_weights_after_loading().unwrap();
    assert_ne!(forward(&model, touched), before.0);
    assert_eq!(forward(&model, untouched), before.1);
}

#[test]
fn failed_load_leaves_the_model_bit_for_bit() {
    let mut model = loaded();
    let token = [0.5, 0.25];
    let before = forward(&model, token);
    let mut bad = checkpoint();
    bad.push(NamedTensor::from_f32("model.layers.7.surprise", [1], &[0.0]).unwrap());
    let error = model
        .load_weights(&mut bad.into_iter().map(Ok))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "1 tensor is unexpected in this model: `model.layers.7.surprise`"
    );
    assert_eq!(forward(&model, token), before);
}

#[test]
fn weights_of_a_substituted_expert_are_skipped_and_counted() {
    let mut tensors = checkpoint();
    let name = "model.layers.1.mlp.experts.2.up_proj.weight";
    tensors.push(NamedTensor::from_f32(name, [3, 2], &[f32::NAN; 6]).unwrap());
    let mut model = wrapped();
    let loaded = load(&mut model, tensors);
    assert_eq!(
        loaded.skipped.into_iter().collect::<Vec<_>>(),
        [(SkipRule::SubstitutedExpert, 1)]
    );
    let token = [0.5, 0.25];
    assert_eq!(forward(&model, token), forward(&self::loaded(), token));
}

#[test]
fn missing_part_of_a_retained_expert_is_named() {
    let mut tensors = checkpoint();
    tensors.retain(|tensor| tensor.name() != "model.layers.1.mlp.experts.3.up_proj.weight");
    let mut model = wrapped();
    load(&mut model, tensors);
    let error = model
        .process_weights_after_loading()
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "1 weight missing: `model.layers.1.mlp.experts.3.up_proj.weight` (layer 1, expert 3)"
    );
}

#[test]
fn order_of_tensors_and_number_of_calls_do_not_matter() {
    let tokens = [[0.5, 0.25], [-0.5, 2.0], [-1.0, -2.0]];
    let expected = tokens.map(|token| forward(&loaded(), token));
    // Every rotation and its reverse, in calls of one tensor, of five, and of all at once.
    let count = checkpoint().len();
    for start in 0..count {
        let mut order: Vec<NamedTensor> = checkpoint();
        order.rotate_left(start);
        if start % 2 == 1 {
            order.reverse();
        }
        for size in [1, 5, count] {
            let mut model = wrapped();
            for part in order.chunks(size) {
                load(&mut model, part.to_vec());
            }
            model.process_weights_after_loading().unwrap();
            assert_eq!(tokens.map(|token| forward(&model, token)), expected);
        }
    }
}

#[test]
fn reload_of_half_a_layer_is_refused_and_of_a_whole_one_accepted() {
    let mut model = loaded();
    let token = [0.5, 0.25];
    let before = forward(&model, token);
    let scaled = |layer: &str| -> Vec<NamedTensor> {
        let of_layer =
            |tensor: &NamedTensor| tensor.name().contains(&format!("{layer}.mlp.experts"));
        let tensors = checkpoint().into_iter().filter(of_layer);
        let scaled = tensors.map(|tensor| {
            let values: Vec<f32> = tensor.to_f32().unwrap().iter().map(|v| v * 3.0).collect();
            NamedTensor::from_f32(tensor.name(), tensor.shape(), &values).unwrap()
        });
        scaled.collect()
    };
    let mut half = scaled("layers.0");
    half.retain(|tensor| !tensor.name().ends_with("experts.3.down_proj.weight"));
    let error = model
        .load_weights(&mut half.into_iter().map(Ok))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "reloading experts of layer 0 needs the whole layer, this call lacks \
         `model.layers.0.mlp.experts.3.down_proj.weight` (layer 0, expert 3)"
    );
    assert_eq!(forward(&model, token), before);
    load(&mut model, scaled("layers.0"));
    model.process_weights_after_loading().unwrap();
    assert_ne!(forward(&model, token), before);
}

#[test]
fn packed_experts_load_to_the_same_model() {
    let all = |parts: &[&str], layer: usize, keep: &dyn Fn(u32) -> bool| -> Vec<f32> {
        let value = |name: String| {
            let tensor = checkpoint()
                .into_iter()
                .find(|tensor| tensor.name() == name);
            tensor.map(|tensor| tensor.to_f32().unwrap())
        };
        let experts = (0..4).filter(|expert| keep(*expert));
        experts
            .flat_map(|expert| parts.iter().map(move |part| (expert, part)))
            .flat_map(|(expert, part)| {
                value(format!(
                    "model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
                ))
                // Rows of substituted experts are never looked at.
                .unwrap_or_else(|| vec![f32::NAN; 6])
            })
            .collect()
    };
    let substituted: [&[u32]; 2] = [&[1], &[0, 2]];
    for compact in [false, true] {
        let mut tensors = checkpoint();
        tensors.retain(|tensor| !tensor.name().contains("_proj"));
        for (layer, substituted) in substituted.into_iter().enumerate() {
            let keep = |expert: u32| !compact || !substituted.contains(&expert);
            let experts = (0..4).filter(|expert| keep(*expert)).count();
            let prefix = format!("model.layers.{layer}.mlp.experts");
            let mut add = |name: &str, shape: [usize; 3], values: &[f32]| {
                let name = format!("{prefix}.{name}");
                tensors.push(NamedTensor::from_f32(name, shape, values).unwrap());
            };
            let gate_up = all(&["gate_proj", "up_proj"], layer, &keep);
            add("gate_up_proj", [experts, 6, 2], &gate_up);
            add(
                "down_proj",
                [experts, 2, 3],
                &all(&["down_proj"], layer, &keep),
            );
        }
        let mut model = wrapped();
        load(&mut model, tensors);
        model.process_weights_after_loading().unwrap();
        let token = [-0.5, 2.0];
        assert_eq!(
            forward(&model, token),
            forward(&loaded(), token),
            "{compact}"
        );
    }
}
