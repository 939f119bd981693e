//! What DeepSeek-V2 and DeepSeek-V3 have that others have not: a cache of latents, rotary elements in
//! two orders, YaRN, layers of multi-token prediction.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use locum::models::{LoadOptions, Model, ModelError};
use locum::nn::DType;
use locum::substitution::SkipRule;
use locum_tests::{EditedModel, Reference, StoredTensor, distance, fixture, full_logits, load};
use safetensors::Dtype;
use serde_json::json;

/// f32 evaluation order moves these logits by up to 2e-5; their standard deviation is about 2.
const TOLERANCE: f32 = 2e-4;

#[test]
fn cache_takes_a_latent_and_a_rotary_key_per_token_and_layer() {
    for (activations, size) in [(DType::F32, 4), (DType::BF16, 2)] {
        let limits = load(&fixture("deepseek_v3/base"), activations).limits();
        // Three layers, kv_lora_rank 16, qk_rope_head_dim 8.
        assert_eq!(limits.cache_bytes_per_token, 3 * (16 + 8) * size);
    }
}

#[test]
fn rope_parameters_of_transformers_5_mean_what_the_older_fields_mean() {
    let ids = Reference::open(&fixture("deepseek_v2_lite/base")).rows("input_ids");
    let old = EditedModel::of_fixture("deepseek_v2_lite/base");
    let mut new = old.clone();
    let mut parameters = new.config["rope_scaling"].take();
    parameters["rope_type"] = parameters["type"].take();
    parameters["rope_theta"] = new.config["rope_theta"].take();
    new.config["rope_parameters"] = parameters;
    let expected = full_logits(&old.load(&LoadOptions::default()), &ids);
    let found = full_logits(&new.load(&LoadOptions::default()), &ids);
    assert_eq!(found, expected);
}

#[test]
fn yarn_changes_the_logits_that_are_compared() {
    let ids = Reference::open(&fixture("deepseek_v2_lite/base")).rows("input_ids");
    let model = EditedModel::of_fixture("deepseek_v2_lite/base");
    let mut without = model.clone();
    without.config["rope_scaling"] = json!(null);
    let expected = full_logits(&model.load(&LoadOptions::default()), &ids);
    let found = full_logits(&without.load(&LoadOptions::default()), &ids);
    assert!(distance(&found, &expected) > 0.1);
}

/// A projection whose heads end with as many rotated rows, from neighbours as pairs to halves.
fn with_halves(tensor: &StoredTensor, head: usize, rotary: usize) -> StoredTensor {
    let elements = tensor.elements();
    let heads = elements.chunks(head * tensor.shape[1]);
    tensor.with_elements(heads.flat_map(|head| {
        let rows: Vec<&[f32]> = head.chunks(tensor.shape[1]).collect();
        let (content, rotated) = rows.split_at(rows.len() - rotary);
        let every_other = |first: usize| rotated.iter().skip(first).step_by(2);
        let rows: Vec<&[f32]> = content
            .iter()
            .chain(every_other(0))
            .chain(every_other(1))
            .copied()
            .collect();
        rows.concat()
    }))
}

#[test]
fn rope_interleave_says_which_elements_are_pairs() {
    let name = "deepseek_v3_moonlight/base";
    let ids = Reference::open(&fixture(name)).rows("input_ids");
    let interleaved = EditedModel::of_fixture(name);
    let mut halves = interleaved.clone();
    halves.config["rope_interleave"] = json!(false);
    let expected = full_logits(&interleaved.load(&LoadOptions::default()), &ids);
    let other = full_logits(&halves.load(&LoadOptions::default()), &ids);
    assert!(distance(&other, &expected) > 0.1);
    for (name, tensor) in &mut halves.tensors {
        // 16 elements that know no position, or the latent's 16, and 8 that rotate.
        if name.ends_with("q_proj.weight") || name.ends_with("kv_a_proj_with_mqa.weight") {
            *tensor = with_halves(tensor, 24, 8);
        }
    }
    let found = full_logits(&halves.load(&LoadOptions::default()), &ids);
    assert_close(name, &found, &expected);
}

/// `deepseek_v3/approx` with a layer of multi-token prediction, which declares two constants.
fn with_mtp_layer() -> EditedModel {
    let mut model = EditedModel::of_fixture("deepseek_v3/approx");
    model.config["num_nextn_predict_layers"] = json!(1);
    model.config["approximate_experts"]["3"] = json!([0, 2]);
    for part in [
        "embed_tokens.weight",
        "eh_proj.weight",
        "self_attn.kv_b_proj.weight",
        "mlp.experts.1.up_proj.weight",
        "mlp.experts.0.approx_value",
        "mlp.experts.2.approx_value",
    ] {
        let zeros = StoredTensor {
            dtype: Dtype::F32,
            shape: vec![64],
            bytes: vec![0; 4 * 64],
        };
        model
            .tensors
            .insert(format!("model.layers.3.{part}"), zeros);
    }
    model
}

#[test]
fn layers_of_multi_token_prediction_are_skipped_and_counted() {
    let reference = Reference::open(&fixture("deepseek_v3/approx"));
    let mut model = with_mtp_layer().plan(&LoadOptions::default()).unwrap();
    let loaded = model.load(|_| {}).unwrap();
    let skipped: Vec<(SkipRule, usize)> = loaded.skipped.into_iter().collect();
    assert_eq!(skipped, [(SkipRule::MultiTokenPrediction, 6)]);
    let found = full_logits(&model, &reference.rows("input_ids"));
    assert_close("mtp", &found, &reference.f32("substituted_logits").1);
}

#[test]
fn number_of_layers_of_multi_token_prediction_is_one_where_nothing_says_it() {
    let mut model = with_mtp_layer();
    model.remove_field("num_nextn_predict_layers");
    assert!(model.plan(&LoadOptions::default()).is_ok());
    model.config["num_mtp_layers"] = json!(0);
    assert_refused(model.plan(&LoadOptions::default()), "layer 3");
}

#[test]
fn constants_declared_beyond_all_layers_are_refused() {
    let mut model = with_mtp_layer();
    model.config["approximate_experts"]["4"] = json!([0]);
    assert_refused(model.plan(&LoadOptions::default()), "layer 4");
    model = with_mtp_layer();
    model.config["num_nextn_predict_layers"] = json!(0);
    assert_refused(model.plan(&LoadOptions::default()), "layer 3");
}

#[test]
fn constants_of_a_dense_layer_are_refused() {
    let mut model = EditedModel::of_fixture("deepseek_v2/approx");
    model.config["approximate_experts"]["0"] = json!([0]);
    assert_refused(model.plan(&LoadOptions::default()), "layer 0");
}

#[track_caller]
fn assert_refused(planned: Result<Model, ModelError>, part: &str) {
    let error = planned.err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    assert!(error.contains(part), "{error:?} does not hold {part:?}");
}

#[track_caller]
fn assert_close(name: &str, found: &[f32], expected: &[f32]) {
    let distance = distance(found, expected);
    println!("{name}: off by {distance:e}");
    assert!(distance <= TOLERANCE, "{name}: off by {distance}");
}
