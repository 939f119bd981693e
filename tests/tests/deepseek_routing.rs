//! DeepSeek's routers alone against transformers: from the experts' input to their ids and weights.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use locum::burn::module::Param;
use locum::burn::tensor::{DType, Device, Tensor, TensorData};
use locum::models::architectures::deepseek_v2::DeepseekV2Config;
use locum::models::architectures::deepseek_v3::DeepseekV3Config;
use locum::models::{ArchitectureConfig, LoadOptions};
use locum::nn::{Router, Routes, RoutingRule};
use locum_tests::{EditedModel, Reference, StoredTensor, distance, fixture, full_logits};
use serde_json::json;

const NAMES: [&str; 4] = [
    "deepseek_v2/approx",
    "deepseek_v2_lite/approx",
    "deepseek_v3/approx",
    "deepseek_v3_moonlight/approx",
];

fn rule(model: &EditedModel) -> RoutingRule {
    if model.config["model_type"] == "deepseek_v2" {
        DeepseekV2Config::from_json(&model.config).unwrap().0.moe
    } else {
        DeepseekV3Config::from_json(&model.config).unwrap().0.moe
    }
    .routing
}

fn matrix(elements: Vec<f32>, shape: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(
        TensorData::new(elements, shape),
        (&Device::flex(), DType::F32),
    )
}

/// Routes of the input that transformers' experts of a layer had.
fn routes(model: &EditedModel, reference: &Reference, layer: u32) -> Routes {
    let prefix = format!("model.layers.{layer}.mlp.gate");
    let mut router = Router::new(64, 8, &Device::flex());
    let weight = model.tensors[&format!("{prefix}.weight")].elements();
    router.weight = Param::from_tensor(matrix(weight, [8, 64]));
    if let Some(bias) = model
        .tensors
        .get(&format!("{prefix}.e_score_correction_bias"))
    {
        let bias = matrix(bias.elements(), [1, 8]).squeeze_dim(0);
        router.e_score_correction_bias = Some(Param::from_tensor(bias));
    }
    let (shape, input) = reference.f32(&format!("debug.{layer}.input"));
    router.forward(matrix(input, [shape[0], shape[1]]), &rule(model))
}

/// Weights by token and expert: the order within a token means nothing.
fn by_expert(ids: &[i64], weights: &[f32]) -> Vec<f32> {
    let mut dense = vec![0.0; ids.len() / 3 * 8];
    for (route, (&id, &weight)) in ids.iter().zip(weights).enumerate() {
        let place = &mut dense[route / 3 * 8 + id as usize];
        assert_eq!(*place, 0.0, "expert {id} twice");
        *place = weight;
    }
    dense
}

#[test]
fn choice_and_weights_agree() {
    for name in NAMES {
        let model = EditedModel::of_fixture(name);
        let reference = Reference::open(&fixture(name));
        for layer in [1, 2] {
            let found = routes(&model, &reference, layer);
            let (shape, ids) = reference.i64(&format!("debug.{layer}.top_k_index"));
            assert_eq!((shape, found.top_k), (vec![80, 3], 3), "{name}");
            let (_, weights) = reference.f32(&format!("debug.{layer}.top_k_weights"));
            let distance = distance(
                &by_expert(&found.ids, &found.weights),
                &by_expert(&ids, &weights),
            );
            println!("{name}, layer {layer}: off by {distance:e}");
            assert!(distance <= 2e-6, "{name}, layer {layer}: off by {distance}");
        }
    }
}

#[test]
fn weights_of_a_token_add_up_to_the_scale_where_they_are_normalised() {
    for (name, scale) in [
        ("deepseek_v3/approx", 2.5),
        ("deepseek_v3_moonlight/approx", 2.446),
    ] {
        let model = EditedModel::of_fixture(name);
        let routes = routes(&model, &Reference::open(&fixture(name)), 1);
        for weights in routes.weights.chunks(3) {
            assert!((weights.iter().sum::<f32>() - scale).abs() < 1e-5, "{name}");
        }
    }
}

#[test]
fn groups_confine_what_is_chosen() {
    for name in ["deepseek_v2/approx", "deepseek_v3/approx"] {
        let model = EditedModel::of_fixture(name);
        let reference = Reference::open(&fixture(name));
        let mut free = model.clone();
        free.config["n_group"] = json!(1);
        free.config["topk_group"] = json!(1);
        let confined = routes(&model, &reference, 1);
        assert_ne!(confined.ids, routes(&free, &reference, 1).ids, "{name}");
        for ids in confined.ids.chunks(3) {
            let mut groups: Vec<i64> = ids.iter().map(|id| id / 2).collect();
            groups.sort_unstable();
            groups.dedup();
            assert_eq!(groups.len(), 2, "{name}: {ids:?}");
        }
    }
}

/// Each correction of a model, changed.
fn with_corrections(name: &str, change: impl Fn(&StoredTensor) -> StoredTensor) -> EditedModel {
    let mut model = EditedModel::of_fixture(name);
    for (name, tensor) in &mut model.tensors {
        if name.ends_with("e_score_correction_bias") {
            *tensor = change(tensor);
        }
    }
    model
}

#[test]
fn correction_that_is_stored_in_bf16_is_used_as_that_value_in_f32() {
    for name in ["deepseek_v3/approx", "deepseek_v3_moonlight/approx"] {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let stored = with_corrections(name, StoredTensor::to_bf16);
        let widened = with_corrections(name, |bias| bias.to_bf16().widened());
        let expected = full_logits(&widened.load(&LoadOptions::default()), &ids);
        let found = full_logits(&stored.load(&LoadOptions::default()), &ids);
        assert_eq!(found, expected, "{name}");
    }
}

/// All corrections moved by 64 are the same choice. In bf16 two numbers about 64 are 0.5 apart, and
/// all sigmoids would be equal; in f32 they are 8e-6 apart.
#[test]
fn choice_is_made_in_f32_whatever_the_correction_is_stored_as() {
    for name in ["deepseek_v3/approx", "deepseek_v3_moonlight/approx"] {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let none = with_corrections(name, |bias| bias.with_elements([0.0; 8]));
        let moved = with_corrections(name, |bias| bias.with_elements([64.0; 8]).to_bf16());
        let expected = full_logits(&none.load(&LoadOptions::default()), &ids);
        let found = full_logits(&moved.load(&LoadOptions::default()), &ids);
        assert_eq!(found, expected, "{name}");
        let corrected = EditedModel::of_fixture(name).load(&LoadOptions::default());
        assert!(distance(&full_logits(&corrected, &ids), &expected) > 0.1);
    }
}

#[test]
fn v2_never_divides_weights_by_their_sum() {
    for name in ["deepseek_v2/base", "deepseek_v2_lite/base"] {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let mut model = EditedModel::of_fixture(name);
        let expected = full_logits(&model.load(&LoadOptions::default()), &ids);
        model.config["norm_topk_prob"] = json!(true);
        let found = full_logits(&model.load(&LoadOptions::default()), &ids);
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn v3_leaves_weights_as_they_are_where_norm_topk_prob_is_false() {
    let reference = Reference::open(&fixture("deepseek_v3/approx"));
    let mut model = EditedModel::of_fixture("deepseek_v3/approx");
    let normalised = routes(&model, &reference, 1);
    for value in [json!(false), json!(null)] {
        model.config["norm_topk_prob"] = value;
        let plain = routes(&model, &reference, 1);
        assert_eq!(plain.ids, normalised.ids);
        for (plain, normalised) in plain.weights.chunks(3).zip(normalised.weights.chunks(3)) {
            // Sigmoids times 2.5 in the same proportions.
            let sum = plain.iter().sum::<f32>() / 2.5;
            for (plain, normalised) in plain.iter().zip(normalised) {
                assert!((plain / sum - normalised).abs() < 1e-5);
                assert!((0.0..2.5).contains(plain));
            }
        }
    }
}
