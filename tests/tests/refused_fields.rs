//! A field that would change the result and is not supported is an error that names it.

use std::path::Path;

use locum::models::{LoadOptions, Model, ModelFiles};
use locum_tests::{EditedModel, fixture};
use serde_json::{Value, json};

/// Refused whatever the family is: the field, a value, and what the message says.
fn refused_by_all() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("hidden_act", json!("gelu"), "`hidden_act` \"gelu\""),
        (
            "quantization_config",
            json!({ "quant_method": "fp8" }),
            "`quantization_config` is not supported",
        ),
        (
            "rope_scaling",
            json!({ "factor": 4.0, "type": "yarn" }),
            "`rope_scaling.type` \"yarn\"",
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e6, "rope_type": "llama3" }),
            "`rope_parameters.rope_type` \"llama3\"",
        ),
        (
            "rope_parameters",
            json!({ "full_attention": { "rope_theta": 1e6 } }),
            "`rope_parameters.full_attention`",
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": "1e6" }),
            "`rope_parameters.rope_theta` must be a positive number",
        ),
        ("rope_scaling", json!(4), "`rope_scaling` must be an object"),
        ("rope_theta", json!(0), "`rope_theta` must be a positive"),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "`layer_types` must be full_attention",
        ),
        (
            "num_key_value_heads",
            json!(3),
            "`num_key_value_heads` 3 does not divide num_attention_heads 4",
        ),
        (
            "num_hidden_layers",
            json!(-1),
            "`num_hidden_layers` must be",
        ),
        (
            "num_hidden_layers",
            json!(4_000_000_000u64),
            "`num_hidden_layers` is 4000000000, but must be at most",
        ),
        ("torch_dtype", json!("float8"), "`torch_dtype` \"float8\""),
        (
            "num_experts_per_tok",
            json!(9),
            "`num_experts_per_tok` is 9, but layer 0 has 8 experts",
        ),
    ]
}

#[test]
fn qwen2_moe() {
    refuses(
        "qwen2_moe/approx",
        vec![
            (
                "partial_rotary_factor",
                json!(0.5),
                "`partial_rotary_factor` 0.5 is not supported",
            ),
            (
                "dual_chunk_attention_config",
                json!({ "chunk_size": 8 }),
                "`dual_chunk_attention_config`",
            ),
            (
                "decoder_sparse_step",
                json!(0),
                "`decoder_sparse_step` must be a positive number",
            ),
            (
                "num_experts",
                json!(4_000_000_000u64),
                "`num_experts` is 4000000000 in layer 0, but must be at most",
            ),
            (
                "mlp_only_layers",
                json!(["1"]),
                "`mlp_only_layers` must be a list of layers",
            ),
            // A dense layer with declared constants.
            ("mlp_only_layers", json!([0, 1]), "layer 0"),
        ],
    );
    refuses_sliding_window_when_it_is_used("qwen2_moe/approx");
}

#[test]
fn qwen3_moe() {
    refuses(
        "qwen3_moe/approx",
        vec![
            (
                "attention_bias",
                json!(true),
                "`attention_bias` is not supported",
            ),
            (
                "dual_chunk_attention_config",
                json!({ "chunk_size": 8 }),
                "`dual_chunk_attention_config`",
            ),
            (
                "partial_rotary_factor",
                json!(0.5),
                "`partial_rotary_factor` 0.5 is not supported",
            ),
            (
                "num_local_experts",
                json!(4),
                "`num_local_experts` is 4, but `num_experts`, which means the same, is 8",
            ),
            ("head_dim", json!(31), "`head_dim` makes 31 elements"),
        ],
    );
    refuses_sliding_window_when_it_is_used("qwen3_moe/approx");
}

#[test]
fn mixtral() {
    refuses(
        "mixtral/approx",
        vec![
            (
                "attention_bias",
                json!(true),
                "`attention_bias` is not supported",
            ),
            ("sliding_window", json!(128), "`sliding_window` 128"),
            ("sliding_window", json!(0), "`sliding_window` 0"),
            ("sliding_window", json!("all"), "`sliding_window` must be"),
            (
                "norm_topk_prob",
                json!(false),
                "`norm_topk_prob` false is not supported",
            ),
            (
                "rope_parameters",
                json!({ "partial_rotary_factor": 0.25 }),
                "`rope_parameters.partial_rotary_factor` 0.25",
            ),
        ],
    );
}

#[test]
fn minimax_m2() {
    refuses(
        "minimax_m2/approx",
        vec![
            (
                "attention_bias",
                json!(true),
                "`attention_bias` is not supported",
            ),
            ("sliding_window", json!(128), "`sliding_window` 128"),
            (
                "scoring_func",
                json!("softmax"),
                "`scoring_func` \"softmax\"",
            ),
            ("norm_topk_prob", json!(false), "`norm_topk_prob` false"),
            (
                "routed_scaling_factor",
                json!(2.5),
                "`routed_scaling_factor` 2.5",
            ),
            ("use_qk_norm", json!(false), "`use_qk_norm` false"),
            (
                "qk_norm_type",
                json!("per_head"),
                "`qk_norm_type` \"per_head\"",
            ),
            ("attn_type_list", json!([1, 0]), "`attn_type_list`"),
            ("layernorm_mlp_beta", json!(0.5), "`layernorm_mlp_beta` 0.5"),
            (
                "layernorm_full_attention_beta",
                json!(3.5),
                "`layernorm_full_attention_beta` 3.5",
            ),
            (
                "shared_intermediate_size",
                json!(64),
                "`shared_intermediate_size` 64",
            ),
            ("rotary_dim", json!(34), "`rotary_dim` makes 34 of the 32"),
            ("rotary_dim", json!(15), "`rotary_dim` makes 15 elements"),
            (
                "partial_rotary_factor",
                json!(0.01),
                "`partial_rotary_factor` makes 0 of the 32",
            ),
        ],
    );
}

#[test]
fn correction_that_the_configuration_denies_is_unexpected() {
    let mut model = EditedModel::of_fixture("minimax_m2/approx");
    model.config["use_routing_bias"] = json!(false);
    let error = model.plan(&LoadOptions::default()).err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("e_score_correction_bias"), "{error:?}");
}

#[test]
fn fields_of_published_checkpoints_that_change_nothing_are_accepted() {
    for (name, fields) in [
        (
            "qwen2_moe/base",
            json!({
                "sliding_window": 32, "max_window_layers": 2, "output_router_logits": false,
                "router_aux_loss_coef": 0.001, "quantization_config": null,
            }),
        ),
        (
            "qwen3_moe/base",
            json!({
                "sliding_window": 32, "max_window_layers": 2, "attention_dropout": 0.0,
                "rope_scaling": { "rope_type": "default" }, "num_local_experts": 8,
            }),
        ),
        (
            "mixtral/base",
            json!({ "sliding_window": 256, "router_jitter_noise": 0.1, "head_dim": null }),
        ),
        (
            "minimax_m2/base",
            json!({
                "attn_type_list": [1, 1], "layernorm_full_attention_beta": 1.0,
                "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_beta": 1.0,
                "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1, "num_mtp_modules": 3,
                "use_mtp": true, "shared_intermediate_size": 0, "shared_moe_mode": "sigmoid",
                "sliding_window": null, "router_jitter_noise": 0.0,
            }),
        ),
    ] {
        let mut model = EditedModel::of_fixture(name);
        for (field, value) in fields.as_object().into_iter().flatten() {
            model.config[field] = value.clone();
        }
        if let Err(error) = model.plan(&LoadOptions::default()) {
            panic!("{name}: {error}");
        }
    }
}

/// The window is used where `use_sliding_window` says so; what is hidden depends on its length,
/// which is 4096 where it is absent, and none where it is null.
#[track_caller]
fn refuses_sliding_window_when_it_is_used(name: &str) {
    let plan = |window: Option<Value>, used: bool, max_positions: u32| {
        let mut model = EditedModel::of_fixture(name);
        model.remove_field("sliding_window");
        if let Some(window) = window {
            model.config["sliding_window"] = window;
        }
        model.config["use_sliding_window"] = json!(used);
        model.config["max_position_embeddings"] = json!(max_positions);
        let planned = model.plan(&LoadOptions::default());
        planned.err().map(|error| error.to_string())
    };
    for (window, max_positions, part) in [
        (Some(json!(255)), 256, "`sliding_window` 255"),
        (None, 4097, "`sliding_window` 4096"),
    ] {
        let error = plan(window.clone(), true, max_positions).unwrap_or_default();
        assert!(
            error.contains("config.json") && error.contains(part),
            "{error:?}"
        );
        assert_eq!(plan(window, false, max_positions), None);
    }
    assert_eq!(plan(Some(json!(256)), true, 256), None);
    assert_eq!(plan(None, true, 4096), None);
    assert_eq!(plan(Some(json!(null)), true, 100_000), None);
}

#[track_caller]
fn refuses(name: &str, of_family: Vec<(&str, Value, &str)>) {
    for (field, value, part) in refused_by_all().into_iter().chain(of_family) {
        let mut model = EditedModel::of_fixture(name);
        model.config[field] = value;
        let error = model.plan(&LoadOptions::default()).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains(part) && (error.contains("config.json") || field == "mlp_only_layers"),
            "{name}: {field}: {error:?} does not hold {part:?}"
        );
    }
    assert!(plans(&fixture(name)), "{name} itself");
}

fn plans(directory: &Path) -> bool {
    let files = ModelFiles::open(directory);
    files
        .and_then(|files| Model::plan(&files, &LoadOptions::default()))
        .is_ok()
}
