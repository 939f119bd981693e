//! Fields of DeepSeek's `config.json`: what absent ones mean, and which are refused.
//!
//! The defaults are those of transformers 5.24's `DeepseekV2Config` and `DeepseekV3Config`, written
//! out.
#![allow(clippy::unwrap_used)]

use locum::models::architectures::deepseek::DeepseekConfig;
use locum::models::architectures::deepseek_v2::DeepseekV2Config;
use locum::models::architectures::deepseek_v3::DeepseekV3Config;
use locum::models::{ArchitectureConfig, DecoderConfig, LoadOptions, MoeConfig};
use locum::nn::{
    GroupScore, Groups, LatentOptions, LatentShape, RotaryConfig, RotaryOrder, RoutingRule,
    Scoring, Yarn,
};
use locum::substitution::Dtype;
use locum_tests::{EditedModel, Reference, fixture, full_logits};
use serde_json::{Value, json};

/// Each field of a fixture whose value is the family's default, or which changes nothing.
const AT_DEFAULT: &[(&str, &[&str])] = &[
    (
        "deepseek_v2/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "rope_theta",
            "rope_scaling",
            "attention_bias",
            "num_key_value_heads",
            "n_shared_experts",
            "moe_layer_freq",
            "norm_topk_prob",
            "scoring_func",
            "torch_dtype",
        ],
    ),
    (
        "deepseek_v2_lite/approx",
        &[
            "topk_method",
            "n_group",
            "topk_group",
            "routed_scaling_factor",
            "rope_theta",
            "norm_topk_prob",
            "n_shared_experts",
        ],
    ),
    (
        "deepseek_v3/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "rope_theta",
            "rope_scaling",
            "attention_bias",
            "num_key_value_heads",
            "n_shared_experts",
            "moe_layer_freq",
            "topk_method",
            "routed_scaling_factor",
            "norm_topk_prob",
            "scoring_func",
            "num_nextn_predict_layers",
            "torch_dtype",
        ],
    ),
    (
        "deepseek_v3_moonlight/approx",
        &["topk_method", "norm_topk_prob", "scoring_func"],
    ),
];

#[test]
fn absent_field_that_had_the_default_changes_no_logit() {
    for &(name, fields) in AT_DEFAULT {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let model = EditedModel::of_fixture(name);
        let expected = full_logits(&model.load(&LoadOptions::default()), &ids);
        for field in fields {
            let mut model = model.clone();
            model.remove_field(field);
            let found = full_logits(&model.load(&LoadOptions::default()), &ids);
            assert_eq!(found, expected, "{name} without {field}");
        }
    }
}

#[test]
fn absent_field_of_yarn_that_had_the_default_changes_no_logit() {
    let name = "deepseek_v2_lite/approx";
    let ids = Reference::open(&fixture(name)).rows("input_ids");
    let model = EditedModel::of_fixture(name);
    let expected = full_logits(&model.load(&LoadOptions::default()), &ids);
    for field in ["beta_fast", "beta_slow"] {
        let mut model = model.clone();
        let scaling = model.config["rope_scaling"].as_object_mut().unwrap();
        assert!(scaling.remove(field).is_some());
        let found = full_logits(&model.load(&LoadOptions::default()), &ids);
        assert_eq!(found, expected, "without {field}");
    }
}

fn v2(config: &Value) -> DeepseekConfig {
    DeepseekV2Config::from_json(config).unwrap().0
}

fn v3(config: &Value) -> DeepseekConfig {
    DeepseekV3Config::from_json(config).unwrap().0
}

/// What the two families have in common where a configuration is empty.
fn shape(heads: usize) -> LatentShape {
    LatentShape {
        heads,
        content: 128,
        rotary: 64,
        value: 128,
        latent: 512,
        query_latent: Some(1536),
    }
}

fn rotary() -> RotaryConfig {
    RotaryConfig {
        order: RotaryOrder::Interleaved,
        ..RotaryConfig::new(64, 10_000.0)
    }
}

#[test]
fn defaults_of_v2() {
    let shape = shape(32);
    let expected = DeepseekConfig {
        decoder: DecoderConfig {
            vocabulary: 102_400,
            hidden: 4096,
            layers: 32,
            max_positions: 2048,
            epsilon: 1e-6,
            tied: false,
            rotary: rotary(),
            cached_elements: 576,
        },
        attention: LatentOptions {
            shape,
            scale: 192f64.powf(-0.5),
            epsilon: 1e-6,
        },
        intermediate: 11_008,
        shared: 2,
        moe: MoeConfig {
            // No layer is dense.
            experts: vec![64; 32],
            intermediate: 1407,
            // Greedy, unscaled.
            routing: RoutingRule::softmax(6, false),
            dtype: Dtype::F32,
        },
        correction: false,
        mtp_layers: 0,
    };
    // The one field without a default.
    assert_eq!(v2(&json!({ "num_experts_per_tok": 6 })), expected);
    let error = DeepseekV2Config::from_json(&json!({})).unwrap_err();
    assert_eq!(error.to_string(), "`num_experts_per_tok` is missing");
}

#[test]
fn defaults_of_v3() {
    let experts = [vec![0; 3], vec![256; 58]].concat();
    let expected = DeepseekConfig {
        decoder: DecoderConfig {
            vocabulary: 129_280,
            hidden: 7168,
            layers: 61,
            max_positions: 4096,
            epsilon: 1e-6,
            tied: false,
            rotary: rotary(),
            cached_elements: 576,
        },
        attention: LatentOptions {
            shape: shape(128),
            scale: 192f64.powf(-0.5),
            epsilon: 1e-6,
        },
        intermediate: 18_432,
        shared: 1,
        moe: MoeConfig {
            experts,
            intermediate: 2048,
            routing: RoutingRule {
                top_k: 8,
                scoring: Scoring::Sigmoid,
                normalize: true,
                epsilon: 1e-20,
                scale: 2.5,
                groups: Some(Groups {
                    count: 8,
                    chosen: 4,
                    score: GroupScore::TopTwo,
                }),
            },
            dtype: Dtype::F32,
        },
        correction: true,
        mtp_layers: 1,
    };
    assert_eq!(v3(&json!({})), expected);
}

#[test]
fn groups_of_v2_are_used_by_one_method_only() {
    let config = |method| {
        json!({
            "num_experts_per_tok": 6, "n_routed_experts": 160, "n_group": 8, "topk_group": 3,
            "topk_method": method, "routed_scaling_factor": 16.0,
        })
    };
    let groups = Groups {
        count: 8,
        chosen: 3,
        score: GroupScore::Max,
    };
    let rule = v2(&config("group_limited_greedy")).moe.routing;
    assert_eq!((rule.groups, rule.scale), (Some(groups), 16.0));
    assert_eq!(v2(&config("greedy")).moe.routing.groups, None);
}

#[test]
fn latent_norms_keep_their_epsilon() {
    let config = v3(&json!({ "rms_norm_eps": 1e-5 }));
    assert_eq!(
        (config.decoder.epsilon, config.attention.epsilon),
        (1e-5, 1e-6)
    );
}

/// Null is not absent: it says that queries have no latent, and that there are no shared experts.
#[test]
fn null_is_none_of_it() {
    let config = v3(&json!({ "q_lora_rank": null, "n_shared_experts": null }));
    assert_eq!(config.attention.shape.query_latent, None);
    assert_eq!(config.shared, 0);
    assert_eq!(
        v3(&json!({ "rope_interleave": null })).decoder.rotary.order,
        RotaryOrder::Halves
    );
}

#[test]
fn dense_layers_are_the_first_and_those_between() {
    let config = json!({
        "num_hidden_layers": 7, "first_k_dense_replace": 2, "moe_layer_freq": 2,
        // Counts by layer need none of the dense layers.
        "n_routed_experts": { "2": 64, "4": 32, "6": 16 }, "num_experts_per_tok": 6,
    });
    assert_eq!(v2(&config).moe.experts, [0, 0, 64, 0, 32, 0, 16]);
}

#[test]
fn either_name_of_a_field_is_read() {
    let config = v2(&json!({ "num_experts": 16, "num_experts_per_tok": 6 }));
    assert_eq!(config.moe.experts, [16; 32]);
    let config = v3(&json!({ "num_local_experts": 64, "num_mtp_layers": 2 }));
    assert_eq!((config.moe.experts[3], config.mtp_layers), (64, 2));
}

#[test]
fn yarn_is_read_with_its_defaults() {
    let scaled = |scaling: Value| {
        v3(&json!({ "max_position_embeddings": 163_840, "rope_scaling": scaling }))
    };
    let config = scaled(json!({
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
        "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    }));
    let yarn = Yarn {
        mscale: Some(1.0),
        mscale_all_dim: Some(1.0),
        ..Yarn::new(40.0, 4096.0)
    };
    assert_eq!(config.decoder.rotary.yarn, Some(yarn));
    assert_eq!(
        config.attention.scale,
        192f64.powf(-0.5) * yarn.softmax_factor()
    );
    // Without the context that was trained on it is the one of now; zero is as good as absent.
    let config = scaled(json!({ "rope_type": "yarn", "factor": 4.0, "beta_fast": 0 }));
    assert_eq!(config.decoder.rotary.yarn, Some(Yarn::new(4.0, 163_840.0)));
    assert_eq!(config.attention.scale, 192f64.powf(-0.5));
    let config = scaled(json!({
        "type": "yarn", "factor": 4.0, "truncate": false, "attention_factor": 1.5,
        "beta_fast": 16.0, "beta_slow": 2.0, "rope_theta": 5e4,
    }));
    let yarn = Yarn {
        beta_fast: 16.0,
        beta_slow: 2.0,
        truncate: false,
        attention_factor: Some(1.5),
        ..Yarn::new(4.0, 163_840.0)
    };
    assert_eq!(config.decoder.rotary.yarn, Some(yarn));
    assert_eq!(config.decoder.rotary.theta, 5e4);
    // A context beside the object takes precedence over the one in it.
    let config = v3(&json!({
        "original_max_position_embeddings": 2048,
        "rope_scaling": { "type": "yarn", "factor": 4, "original_max_position_embeddings": 4096 },
    }));
    assert_eq!(config.decoder.rotary.yarn, Some(Yarn::new(4.0, 2048.0)));
}

/// Refused whatever the family is: the field, a value, and what the message says.
fn refused_by_both() -> Vec<(&'static str, Value, &'static str)> {
    let yarn = |key: &str, value: Value| {
        let mut scaling = json!({ "type": "yarn", "factor": 40.0 });
        scaling[key] = value;
        scaling
    };
    vec![
        ("hidden_act", json!("gelu"), "`hidden_act` \"gelu\""),
        (
            "attention_bias",
            json!(true),
            "`attention_bias` is not supported",
        ),
        ("mlp_bias", json!(true), "`mlp_bias` is not supported"),
        (
            "quantization_config",
            json!({ "quant_method": "fp8", "weight_block_size": [128, 128] }),
            "`quantization_config` is not supported (\"fp8\"): convert the weights to bfloat16",
        ),
        (
            "quantization_config",
            json!({ "bits": 4 }),
            "`quantization_config` is not supported",
        ),
        (
            "torch_dtype",
            json!("float8_e4m3fn"),
            "`torch_dtype` \"float8_e4m3fn\"",
        ),
        (
            "num_key_value_heads",
            json!(2),
            "`num_key_value_heads` 2 is not supported (supported: 4)",
        ),
        (
            "partial_rotary_factor",
            json!(0.5),
            "`partial_rotary_factor` 0.5 is not supported",
        ),
        (
            "qk_rope_head_dim",
            json!(7),
            "`qk_rope_head_dim` makes 7 elements",
        ),
        (
            "kv_lora_rank",
            json!(0),
            "`kv_lora_rank` must be a positive number",
        ),
        (
            "q_lora_rank",
            json!(-1),
            "`q_lora_rank` must be a positive number",
        ),
        (
            "first_k_dense_replace",
            json!(-1),
            "`first_k_dense_replace` must be a number from 0",
        ),
        (
            "moe_layer_freq",
            json!(0),
            "`moe_layer_freq` must be a positive number",
        ),
        (
            "n_shared_experts",
            json!("two"),
            "`n_shared_experts` must be a number from 0",
        ),
        (
            "num_experts_per_tok",
            json!(9),
            "`num_experts_per_tok` is 9, but layer 1 has 8 experts",
        ),
        ("num_hidden_layers", json!(4_000_000), "`num_hidden_layers`"),
        (
            "rope_scaling",
            json!({ "type": "linear", "factor": 2.0 }),
            "`rope_scaling.type` \"linear\" is not supported (supported: default, yarn)",
        ),
        (
            "rope_scaling",
            json!({ "rope_type": "dynamic", "factor": 2.0 }),
            "`rope_scaling.rope_type` \"dynamic\"",
        ),
        (
            "rope_scaling",
            json!({ "factor": 2.0 }),
            "`rope_scaling.factor`",
        ),
        (
            "rope_scaling",
            json!({ "type": "yarn" }),
            "`rope_scaling.factor` is missing",
        ),
        (
            "rope_scaling",
            yarn("factor", json!(0)),
            "`rope_scaling.factor` must be a positive number",
        ),
        (
            "rope_scaling",
            yarn("factor", json!("40")),
            "`rope_scaling.factor` must be a number",
        ),
        (
            "rope_scaling",
            yarn("truncate", json!(1)),
            "`rope_scaling.truncate` must be true or false",
        ),
        (
            "rope_scaling",
            yarn("beta_slow", json!(-1)),
            "`rope_scaling.beta_slow` must be a positive",
        ),
        (
            "rope_scaling",
            yarn("rope_theta", json!(1)),
            "yarn needs more than 1",
        ),
        (
            "rope_scaling",
            yarn("original_max_position_embeddings", json!(-4)),
            "`rope_scaling.original_max_position_embeddings` must be a positive number",
        ),
        (
            "rope_scaling",
            yarn("partial_rotary_factor", json!(0.5)),
            "`rope_scaling.partial_rotary_factor` 0.5 is not supported",
        ),
        (
            "rope_scaling",
            yarn("short_factor", json!([1.0])),
            "`rope_scaling.short_factor`",
        ),
    ]
}

#[test]
fn refused_by_v2() {
    refuses(
        "deepseek_v2/approx",
        vec![
            (
                "scoring_func",
                json!("sigmoid"),
                "`scoring_func` \"sigmoid\"",
            ),
            (
                "topk_method",
                json!("noaux_tc"),
                "`topk_method` \"noaux_tc\"",
            ),
            ("n_group", json!(null), "`n_group` is missing"),
            (
                "n_group",
                json!(3),
                "`n_group` is 3, but layer 1 has 8 experts",
            ),
            (
                "topk_group",
                json!(5),
                "`topk_group` is 5, but `n_group` is 4",
            ),
            (
                "topk_group",
                json!(1),
                "`topk_group` 1 leaves 2 experts to choose from in layer 1",
            ),
        ],
    );
}

#[test]
fn refused_by_v3() {
    refuses(
        "deepseek_v3/approx",
        vec![
            (
                "scoring_func",
                json!("softmax"),
                "`scoring_func` \"softmax\"",
            ),
            ("topk_method", json!("greedy"), "`topk_method` \"greedy\""),
            (
                "n_group",
                json!(16),
                "`n_group` is 16, but layer 1 has 8 experts",
            ),
            // The two best of a group of one are no sum.
            (
                "n_group",
                json!(8),
                "`n_group` is 8, but layer 1 has 8 experts",
            ),
            (
                "topk_group",
                json!(5),
                "`topk_group` is 5, but `n_group` is 4",
            ),
            (
                "topk_group",
                json!(1),
                "`topk_group` 1 leaves 2 experts to choose from in layer 1",
            ),
            ("num_mtp_layers", json!(1), "`num_mtp_layers` is 1"),
            (
                "rope_interleave",
                json!("yes"),
                "`rope_interleave` must be true or false",
            ),
        ],
    );
}

#[track_caller]
fn refuses(name: &str, of_family: Vec<(&str, Value, &str)>) {
    assert!(
        EditedModel::of_fixture(name)
            .plan(&LoadOptions::default())
            .is_ok()
    );
    for (field, value, part) in refused_by_both().into_iter().chain(of_family) {
        let mut model = EditedModel::of_fixture(name);
        model.config[field] = value;
        let error = model.plan(&LoadOptions::default()).err();
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(
            error.contains("config.json") && error.contains(part),
            "{name}: {field}: {error:?} does not hold {part:?}"
        );
    }
}

#[test]
fn fields_of_published_checkpoints_that_change_nothing_are_accepted() {
    for (name, fields) in [
        (
            "deepseek_v2/base",
            json!({
                "aux_loss_alpha": 0.001, "seq_aux": true, "pretraining_tp": 1, "ep_size": 1,
                "attention_dropout": 0.0, "auto_map": {}, "quantization_config": null,
            }),
        ),
        (
            "deepseek_v3/base",
            json!({
                "aux_loss_alpha": 0.001, "seq_aux": true, "ep_size": 1, "attention_dropout": 0.0,
                "num_nextn_predict_layers": 1, "rope_interleave": true, "head_dim": 8,
            }),
        ),
    ] {
        let mut model = EditedModel::of_fixture(name);
        for (field, value) in fields.as_object().unwrap() {
            model.config[field] = value.clone();
        }
        if let Err(error) = model.plan(&LoadOptions::default()) {
            panic!("{name}: {error}");
        }
    }
}
