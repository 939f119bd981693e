//! What an absent field means: the default of the family's configuration class in transformers.
//!
//! The numbers here are those classes' (transformers 5.24), written out.

use locum::models::architectures::minimax_m2::MiniMaxM2Config;
use locum::models::architectures::mixtral::MixtralConfig;
use locum::models::architectures::olmoe::OlmoeConfig;
use locum::models::architectures::qwen2_moe::Qwen2MoeConfig;
use locum::models::architectures::qwen3_moe::Qwen3MoeConfig;
use locum::models::{ArchitectureConfig, DecoderConfig, LoadOptions, MoeConfig};
use locum::nn::{AttentionOptions, AttentionShape, HeadNorm, RotaryConfig, RoutingRule, Scoring};
use locum::substitution::Dtype;
use locum_tests::{EditedModel, Reference, fixture, full_logits};
use serde_json::{Value, json};

/// Each field of a fixture whose value is the family's default.
const AT_DEFAULT: &[(&str, &[&str])] = &[
    (
        "qwen2_moe/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "use_sliding_window",
            "sliding_window",
            "decoder_sparse_step",
            "norm_topk_prob",
            "torch_dtype",
        ],
    ),
    (
        "qwen3_moe/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "rope_scaling",
            "attention_bias",
            "use_sliding_window",
            "sliding_window",
            "decoder_sparse_step",
            "mlp_only_layers",
            "torch_dtype",
        ],
    ),
    (
        "mixtral/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "rope_theta",
            "sliding_window",
            "num_experts_per_tok",
            "num_local_experts",
            "torch_dtype",
        ],
    ),
    (
        "minimax_m2/approx",
        &[
            "hidden_act",
            "rms_norm_eps",
            "tie_word_embeddings",
            "rope_theta",
            "scoring_func",
            "use_qk_norm",
            "qk_norm_type",
            "use_routing_bias",
            "torch_dtype",
        ],
    ),
];

#[test]
fn absent_field_that_had_the_default_changes_no_logit() {
    for &(name, fields) in AT_DEFAULT {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let expected = full_logits(
            &EditedModel::of_fixture(name).load(&LoadOptions::default()),
            &ids,
        );
        for field in fields {
            let mut model = EditedModel::of_fixture(name);
            model.remove_field(field);
            let found = full_logits(&model.load(&LoadOptions::default()), &ids);
            assert_eq!(found, expected, "{name} without {field}");
        }
    }
}

#[test]
fn olmoe() {
    assert_eq!(
        defaults::<OlmoeConfig>(),
        OlmoeConfig {
            decoder: DecoderConfig {
                vocabulary: 50_304,
                hidden: 2048,
                layers: 16,
                max_positions: 4096,
                epsilon: 1e-5,
                tied: false,
                rotary: rotary(128, 10_000.0),
                cached_elements: 2 * 16 * 128,
            },
            attention: attention(16, 16, 128, HeadNorm::Projection(1e-5)),
            moe: moe(16, 64, 2048, RoutingRule::softmax(8, false)),
        }
    );
}

#[test]
fn qwen2_moe() {
    assert_eq!(
        defaults::<Qwen2MoeConfig>(),
        Qwen2MoeConfig {
            decoder: DecoderConfig {
                vocabulary: 151_936,
                hidden: 2048,
                layers: 24,
                max_positions: 32_768,
                epsilon: 1e-6,
                tied: false,
                rotary: rotary(128, 10_000.0),
                cached_elements: 2 * 16 * 128,
            },
            attention: AttentionOptions {
                bias: true,
                ..attention(16, 16, 128, HeadNorm::None)
            },
            moe: moe(24, 60, 1408, RoutingRule::softmax(4, false)),
            shared_intermediate: 5632,
            dense_intermediate: 5632,
        }
    );
}

#[test]
fn qwen3_moe() {
    assert_eq!(
        defaults::<Qwen3MoeConfig>(),
        Qwen3MoeConfig {
            decoder: DecoderConfig {
                vocabulary: 151_936,
                hidden: 2048,
                layers: 24,
                max_positions: 32_768,
                epsilon: 1e-6,
                tied: false,
                // The class has no `head_dim`: 2048 / 32.
                rotary: rotary(64, 10_000.0),
                cached_elements: 2 * 4 * 64,
            },
            attention: attention(32, 4, 64, HeadNorm::Head(1e-6)),
            // Published checkpoints say true; the class says false.
            moe: moe(24, 128, 768, RoutingRule::softmax(8, false)),
            dense_intermediate: 6144,
        }
    );
}

#[test]
fn mixtral() {
    assert_eq!(
        defaults::<MixtralConfig>(),
        MixtralConfig {
            decoder: DecoderConfig {
                vocabulary: 32_000,
                hidden: 4096,
                layers: 32,
                max_positions: 131_072,
                epsilon: 1e-5,
                tied: false,
                rotary: rotary(128, 1_000_000.0),
                cached_elements: 2 * 8 * 128,
            },
            attention: attention(32, 8, 128, HeadNorm::None),
            moe: moe(32, 8, 14_336, RoutingRule::softmax(2, true)),
        }
    );
}

#[test]
fn minimax_m2() {
    let routing = RoutingRule {
        top_k: 8,
        scoring: Scoring::Sigmoid,
        normalize: true,
        epsilon: 0.0,
        scale: 1.0,
        groups: None,
    };
    assert_eq!(
        defaults::<MiniMaxM2Config>(),
        MiniMaxM2Config {
            decoder: DecoderConfig {
                vocabulary: 200_064,
                hidden: 3072,
                layers: 62,
                max_positions: 196_608,
                epsilon: 1e-6,
                tied: false,
                // Without `rotary_dim` the whole head rotates.
                rotary: rotary(128, 5_000_000.0),
                cached_elements: 2 * 8 * 128,
            },
            attention: attention(48, 8, 128, HeadNorm::Projection(1e-6)),
            moe: moe(62, 256, 1536, routing),
            correction: true,
            mtp_layers: 0,
        }
    );
}

#[test]
fn null_key_value_heads_are_as_many_as_query_heads() {
    let config = parsed::<MixtralConfig>(&json!({ "num_key_value_heads": null }));
    assert_eq!(config.attention.shape.kv_heads, 32);
}

#[test]
fn rope_parameters_of_transformers_5_mean_what_the_older_fields_mean() {
    fn check<C: ArchitectureConfig>(name: &str) {
        let mut model = EditedModel::of_fixture(name);
        let old = parsed::<C>(&model.config).decoder().clone();
        let mut parameters = json!({
            "rope_type": "default",
            "rope_theta": model.config["rope_theta"],
        });
        model.remove_field("rope_theta");
        if let Some(dimensions) = model.config.get("rotary_dim").and_then(Value::as_f64) {
            model.remove_field("rotary_dim");
            parameters["partial_rotary_factor"] = json!(dimensions / 32.0);
        }
        model.config["rope_parameters"] = parameters;
        let new = parsed::<C>(&model.config).decoder().clone();
        assert_eq!(new, old, "{name}");
        // With the theta of nowhere but there.
        model.config["rope_parameters"]["rope_theta"] = json!(12_345);
        let theta = parsed::<C>(&model.config).decoder().rotary.theta;
        assert_eq!(theta, 12_345.0, "{name}");
    }
    check::<Qwen2MoeConfig>("qwen2_moe/base");
    check::<Qwen3MoeConfig>("qwen3_moe/base");
    check::<MixtralConfig>("mixtral/base");
    check::<MiniMaxM2Config>("minimax_m2/base");
}

#[test]
fn either_name_of_the_number_of_experts_is_read() {
    let local = json!({ "num_local_experts": 16 });
    let plain = json!({ "num_experts": 16 });
    for config in [local, plain] {
        assert_eq!(parsed::<Qwen3MoeConfig>(&config).moe.experts, [16; 24]);
        assert_eq!(parsed::<MixtralConfig>(&config).moe.experts, [16; 32]);
        assert_eq!(parsed::<MiniMaxM2Config>(&config).moe.experts, [16; 62]);
    }
}

#[test]
fn field_beside_the_text_config_counts_where_that_has_none() {
    let config = json!({
        "num_experts": 16, "num_experts_per_tok": 3,
        "text_config": { "num_experts_per_tok": 2 },
    });
    let moe = parsed::<Qwen3MoeConfig>(&config).moe;
    assert_eq!((moe.experts, moe.routing.top_k), (vec![16; 24], 2));
}

#[test]
fn dense_layers_are_those_listed_and_those_between_the_steps() {
    let config = json!({
        "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3, 9],
        // Counts by layer need none of the dense layers.
        "num_experts": { "1": 16, "5": 8 }, "num_experts_per_tok": 4,
    });
    let experts = [0, 16, 0, 0, 0, 8];
    assert_eq!(parsed::<Qwen2MoeConfig>(&config).moe.experts, experts);
    assert_eq!(parsed::<Qwen3MoeConfig>(&config).moe.experts, experts);
}

fn parsed<C: ArchitectureConfig>(config: &Value) -> C {
    C::from_json(config).unwrap_or_else(|error| panic!("{error}"))
}

fn defaults<C: ArchitectureConfig>() -> C {
    parsed(&json!({}))
}

fn rotary(dimensions: usize, theta: f64) -> RotaryConfig {
    RotaryConfig::new(dimensions, theta)
}

fn attention(heads: usize, kv_heads: usize, head: usize, norm: HeadNorm) -> AttentionOptions {
    AttentionOptions {
        shape: AttentionShape {
            heads,
            kv_heads,
            head,
        },
        norm,
        bias: false,
        clip: None,
    }
}

fn moe(layers: usize, experts: u32, intermediate: usize, routing: RoutingRule) -> MoeConfig {
    MoeConfig {
        experts: vec![experts; layers],
        intermediate,
        routing,
        dtype: Dtype::F32,
    }
}
