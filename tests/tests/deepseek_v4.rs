//! What DeepSeek-V4 has that others have not: compressed blocks, experts chosen by token, two kinds
//! of positions, names of its own; and its fields, absent or refused.
//!
//! The defaults are those of transformers 5.24's `DeepseekV4Config`, written out.
#![allow(clippy::unwrap_used)]

use locum::eplb::{LogicalExpert, collect_moe_layers};
use locum::models::architectures::deepseek_v4::{DeepseekV4Config, SubstitutedDeepseekV4};
use locum::models::{
    CachedElements, HyperConnectedConfig, LoadOptions, Logits, Model, ModelError, MoeConfig,
};
use locum::nn::{
    CompressedOptions, Compression, DType, Device, HyperOptions, IndexOptions, RotaryConfig,
    RotaryOrder, RoutingRule, Scoring, Yarn,
};
use locum::substitution::{Dtype, SkipRule};
use locum::{SubstitutionSpec, checkpoint::read_json};
use locum_tests::{EditedModel, Reference, StoredTensor, distance, fixture, full_logits, load};
use serde_json::{Value, json};

const TABLE: &str = "layers.0.ffn.gate.tid2eid";
/// f32 evaluation order moves these logits by up to 2e-5; their standard deviation is about 2.
const TOLERANCE: f32 = 2e-4;

fn rows() -> Vec<Vec<i64>> {
    Reference::open(&fixture("deepseek_v4/base")).rows("input_ids")
}

fn options() -> LoadOptions {
    LoadOptions::default()
}

#[test]
fn parts_of_any_length_give_what_the_whole_sequence_gives() {
    let model = load(&fixture("deepseek_v4/approx"), DType::F32);
    let ids = rows().swap_remove(0);
    let expected = full_logits(&model, std::slice::from_ref(&ids));
    // Blocks are of 4 and of 128 tokens, the window is of 16.
    for lengths in [&[3, 1, 17, 40, 2, 66, 15][..], &[127, 2, 15], &[129, 15]] {
        assert_eq!(lengths.iter().sum::<usize>(), ids.len());
        let mut caches = [model.new_cache()];
        let mut found = Vec::new();
        let mut rest = &ids[..];
        for &length in lengths {
            let (part, after) = rest.split_at(length);
            let logits = model.logits(&[part.to_vec()], &mut caches, Logits::All);
            found.extend(logits.unwrap());
            rest = after;
        }
        let off = distance(&found, &expected);
        assert!(off <= 2e-5, "{lengths:?}: off by {off}");
    }
}

#[test]
fn blocks_beyond_the_window_and_the_choice_among_them_matter() {
    let expected = full_logits(&load(&fixture("deepseek_v4/base"), DType::F32), &rows());
    for (field, value) in [
        ("compress_ratios", json!([0, 4, 0, 4])),
        ("sliding_window", json!(17)),
        ("swiglu_limit", json!(1.0)),
        ("hc_sinkhorn_iters", json!(1)),
        ("index_topk", json!(7)),
    ] {
        let mut model = EditedModel::of_fixture("deepseek_v4/base");
        model.config[field] = value;
        if field == "compress_ratios" {
            let compressor = |name: &str| name.starts_with("layers.2.attn.compressor.");
            model.tensors.retain(|name, _| !compressor(name));
        }
        let off = distance(&full_logits(&model.load(&options()), &rows()), &expected);
        assert!(off > 1e-3, "{field}: off by {off} only");
    }
}

#[test]
fn table_of_experts_is_read_from_either_integer_type() {
    let mut model = EditedModel::of_fixture("deepseek_v4/base");
    let expected = full_logits(&model.load(&options()), &rows());
    let table = &model.tensors[TABLE];
    let (ids, _) = table.bytes.as_chunks::<8>();
    let narrow = ids.iter().flat_map(|id| id[..4].to_vec()).collect();
    let narrow = StoredTensor {
        dtype: safetensors::Dtype::I32,
        shape: table.shape.clone(),
        bytes: narrow,
    };
    model.tensors.insert(TABLE.into(), narrow);
    assert_eq!(full_logits(&model.load(&options()), &rows()), expected);
}

#[test]
fn table_of_experts_that_is_unusable_is_refused() {
    let fixture = EditedModel::of_fixture("deepseek_v4/base");
    let mut model = fixture.clone();
    let weights = model.tensors["layers.0.ffn.shared_experts.w1.weight"].clone();
    model.tensors.insert(TABLE.into(), weights);
    let floats = format!("`{TABLE}` has dtype f32, expected i64 or i32");
    assert_refused(model.plan(&options()).map(drop), &floats);
    model = fixture.clone();
    model.tensors.get_mut(TABLE).unwrap().shape = vec![80, 6];
    assert_refused(model.plan(&options()).map(drop), "[160, 3]");
    model = fixture.clone();
    model.tensors.remove(TABLE);
    assert_refused(model.plan(&options()).map(drop), TABLE);
    // A table in the place of weights.
    model = fixture.clone();
    let table = model.tensors[TABLE].clone();
    model.tensors.insert("norm.weight".into(), table);
    let integers = "`norm.weight` has dtype i64, expected f32, f16 or bf16";
    assert_refused(model.plan(&options()).map(drop), integers);
    for expert in [8, -1i64] {
        let mut model = fixture.clone();
        let table = model.tensors.get_mut(TABLE).unwrap();
        table.bytes[16..24].copy_from_slice(&expert.to_le_bytes());
        let mut model = model.plan(&options()).unwrap();
        let unknown = format!("`{TABLE}` chooses expert {expert}");
        assert_refused(model.load(|_| {}).map(drop), &unknown);
    }
}

#[test]
fn tensors_of_multi_token_prediction_are_skipped_under_their_own_names() {
    let mut model = EditedModel::of_fixture("deepseek_v4/approx");
    let norm = model.tensors["norm.weight"].clone();
    model
        .tensors
        .insert("mtp.0.norm.weight".into(), norm.clone());
    model
        .tensors
        .insert("mtp.0.ffn.experts.3.w1.weight".into(), norm);
    let mut model = model.plan(&options()).unwrap();
    let skipped: Vec<_> = model.load(|_| {}).unwrap().skipped.into_iter().collect();
    assert_eq!(skipped, [(SkipRule::MultiTokenPrediction, 2)]);
}

#[test]
fn cache_takes_an_entry_per_block_and_a_window_per_sequence() {
    for (activations, size) in [(DType::F32, 4), (DType::BF16, 2)] {
        let limits = load(&fixture("deepseek_v4/base"), activations).limits();
        // Heads of 32; two layers with blocks of 4 have keys of 16 to choose by, one has blocks of 128.
        let per_token = 2.0 * 48.0 / 4.0 + 32.0 / 128.0;
        let bytes = (per_token * f64::from(size)).ceil() as usize;
        assert_eq!(limits.cache_bytes_per_token, bytes);
        // Values and gates of up to 3 tokens, twice as wide where blocks overlap, and of a whole block.
        let overlapping = |width: usize| 2 * (3 * 2 * width + 4 * width);
        let elements = 4 * 15 * 32 + 2 * (overlapping(32) + overlapping(16)) + 2 * 127 * 32;
        assert_eq!(limits.cache_bytes_per_sequence, elements * size as usize);
    }
}

#[test]
fn retained_experts_are_what_is_placed() {
    let json = read_json(fixture("deepseek_v4/approx/config.json")).unwrap();
    let config = DeepseekV4Config::from_json(&json).unwrap();
    let model = config.build(DType::F32, &Device::flex());
    let spec = SubstitutionSpec::from_config(&json).unwrap();
    let model = SubstitutedDeepseekV4::try_new(model, &spec).unwrap();
    let layers = collect_moe_layers(model.layers(), 0, None).geometry.layers;
    let retained: Vec<usize> = layers.iter().map(|l| l.geometry.retained).collect();
    assert_eq!(retained, [5, 3, 6, 4]);
    assert!(layers.iter().all(|l| l.geometry.shared == 1));
    assert_eq!(
        layers[3].retained,
        Some([1, 4, 5, 7].map(LogicalExpert).to_vec())
    );
}

#[test]
fn absent_field_that_had_the_default_changes_no_logit() {
    let model = EditedModel::of_fixture("deepseek_v4/approx");
    let expected = full_logits(&model.load(&options()), &rows());
    for field in [
        "hidden_act",
        "rms_norm_eps",
        "tie_word_embeddings",
        "rope_theta",
        "compress_rope_theta",
        "num_key_value_heads",
        "n_shared_experts",
        "scoring_func",
        "norm_topk_prob",
        "routed_scaling_factor",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "num_nextn_predict_layers",
        "torch_dtype",
    ] {
        let mut model = model.clone();
        model.remove_field(field);
        let found = full_logits(&model.load(&options()), &rows());
        assert_eq!(found, expected, "without {field}");
    }
}

fn parsed(config: &Value) -> DeepseekV4Config {
    DeepseekV4Config::from_json(config).unwrap_or_else(|error| panic!("{error}"))
}

fn rotary(theta: f64) -> RotaryConfig {
    RotaryConfig {
        order: RotaryOrder::Interleaved,
        ..RotaryConfig::new(64, theta)
    }
}

#[test]
fn defaults() {
    let window = CompressedOptions {
        heads: 64,
        head: 512,
        query_latent: 1024,
        window: 128,
        groups: 8,
        group_size: 1024,
        rotary: rotary(160_000.0),
        epsilon: 1e-6,
        compression: None,
    };
    let all = CompressedOptions {
        compression: Some(Compression {
            block: 128,
            index: None,
        }),
        ..window.clone()
    };
    let some = CompressedOptions {
        compression: Some(Compression {
            block: 4,
            index: Some(IndexOptions {
                heads: 64,
                head: 128,
                chosen: 512,
            }),
        }),
        ..window
    };
    let attention: Vec<CompressedOptions> = (0..43)
        .map(|layer| match layer {
            0 | 1 => all.clone(),
            _ if layer % 2 == 1 => some.clone(),
            _ => all.clone(),
        })
        .collect();
    let config = parsed(&json!({}));
    assert_eq!(config.attention, attention);
    assert_eq!(
        config,
        DeepseekV4Config {
            decoder: HyperConnectedConfig {
                vocabulary: 129_280,
                hidden: 4096,
                layers: 43,
                max_positions: 1_048_576,
                epsilon: 1e-6,
                tied: false,
                rotary: rotary(10_000.0),
                hyper: HyperOptions {
                    streams: 4,
                    iterations: 20,
                    epsilon: 1e-6,
                    norm_epsilon: 1e-6,
                },
                cached: CachedElements {
                    per_token: 20.0 * 640.0 / 4.0 + 23.0 * 4.0,
                    per_sequence: 43 * 127 * 512 + 20 * 2 * (3 * 2 + 4) * 640 + 23 * 2 * 127 * 512,
                },
                mtp_layers: 1,
            },
            attention,
            moe: MoeConfig {
                experts: vec![256; 43],
                intermediate: 2048,
                routing: RoutingRule {
                    top_k: 6,
                    scoring: Scoring::SqrtSoftplus,
                    normalize: true,
                    epsilon: 1e-20,
                    scale: 1.5,
                    groups: None,
                },
                dtype: Dtype::F32,
            },
            by_token: (0..43).map(|layer| layer < 3).collect(),
            limit: 10.0,
        }
    );
}

#[test]
fn fields_of_transformers_5_mean_what_the_older_ones_mean() {
    let old = EditedModel::of_fixture("deepseek_v4/base").config;
    let mut new = old.clone();
    let fields = new.as_object_mut().unwrap();
    for field in ["compress_ratios", "num_hash_layers", "qk_rope_head_dim"] {
        assert!(fields.remove(field).is_some());
    }
    new["layer_types"] = json!([
        "sliding_attention",
        "compressed_sparse_attention",
        "heavily_compressed_attention",
        "compressed_sparse_attention"
    ]);
    new["mlp_layer_types"] = json!(["hash_moe", "moe", "moe", "moe"]);
    new["compress_rates"] = json!({
        "compressed_sparse_attention": 4, "heavily_compressed_attention": 128
    });
    let positions = |theta: f64| json!({ "rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.25 });
    new["rope_parameters"] = json!({ "main": positions(1e4), "compress": positions(1.6e5) });
    assert_eq!(parsed(&new), parsed(&old));
    new["compress_rate_csa"] = json!(8);
    new["rope_parameters"]["main"]["rope_theta"] = json!(12_345);
    let config = parsed(&new);
    assert_eq!(config.decoder.rotary.theta, 12_345.0);
    assert_eq!(config.attention[1].compression.unwrap().block, 8);
}

#[test]
fn yarn_scales_positions_of_layers_with_blocks_and_leaves_their_size() {
    let mut config = EditedModel::of_fixture("deepseek_v4/base").config;
    config["rope_scaling"] = json!({
        "type": "yarn", "factor": 16, "original_max_position_embeddings": 64,
        "beta_fast": 32, "beta_slow": 1,
    });
    let config = parsed(&config);
    assert_eq!(config.decoder.rotary.yarn, None);
    assert_eq!(config.attention[0].rotary.yarn, None);
    let yarn = Yarn {
        attention_factor: Some(1.0),
        ..Yarn::new(16.0, 64.0)
    };
    assert_eq!(config.attention[1].rotary.yarn, Some(yarn));
    assert_eq!(config.attention[2].rotary.yarn, Some(yarn));
}

#[test]
fn fields_that_are_not_supported_are_refused() {
    let ratios = json!([0, 4, 64, 4]);
    let types = json!(["full_attention", "moe", "moe", "moe"]);
    for (field, value, message) in [
        ("hidden_act", json!("gelu"), "`hidden_act` \"gelu\""),
        ("attention_bias", json!(true), "`attention_bias`"),
        ("mlp_bias", json!(true), "`mlp_bias`"),
        (
            "quantization_config",
            json!({ "quant_method": "fp8" }),
            "`quantization_config` is not supported",
        ),
        (
            "scoring_func",
            json!("softmax"),
            "`scoring_func` \"softmax\"",
        ),
        ("norm_topk_prob", json!(false), "`norm_topk_prob` false"),
        ("n_shared_experts", json!(2), "`n_shared_experts` 2"),
        ("num_key_value_heads", json!(2), "`num_key_value_heads` 2"),
        ("compress_ratios", ratios, "`compress_ratios` 64"),
        (
            "compress_ratios",
            json!([0, 4]),
            "`compress_ratios` must be a list of 4",
        ),
        (
            "layer_types",
            types.clone(),
            "`layer_types` \"full_attention\"",
        ),
        (
            "mlp_layer_types",
            types,
            "`mlp_layer_types` \"full_attention\"",
        ),
        (
            "compress_rates",
            json!({}),
            "`compress_rates.compressed_sparse",
        ),
        ("o_groups", json!(3), "`o_groups` 3 does not divide"),
        (
            "swiglu_limit",
            json!(0),
            "`swiglu_limit` must be a positive",
        ),
        (
            "sliding_window",
            json!(0),
            "`sliding_window` must be a positive",
        ),
        ("hc_mult", json!(0), "`hc_mult` must be a positive"),
        ("index_head_dim", json!(4), "`index_head_dim` is 4, but 8"),
        ("qk_rope_head_dim", json!(7), "`qk_rope_head_dim` makes 7"),
        (
            "compress_rope_theta",
            json!(0),
            "`compress_rope_theta` must be",
        ),
        (
            "num_experts_per_tok",
            json!(9),
            "`num_experts_per_tok` is 9",
        ),
        (
            "rope_scaling",
            json!({ "type": "linear", "factor": 2 }),
            "`rope_scaling.type` \"linear\"",
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": 5 }),
            "`rope_parameters.rope_theta` 5",
        ),
        (
            "rope_parameters",
            json!({ "main": { "rope_theta": 5 } }),
            "`rope_parameters.main`",
        ),
        (
            "rope_parameters",
            json!({ "main": { "rope_theta": 5 }, "compress": {} }),
            "`rope_parameters.main.partial_rotary_factor` is missing",
        ),
    ] {
        let mut config = EditedModel::of_fixture("deepseek_v4/base").config;
        config[field] = value;
        assert_refused(DeepseekV4Config::from_json(&config).map(drop), message);
    }
}

#[test]
fn logits_agree_with_what_is_stored_as_the_family_stores_it() {
    // Published checkpoints hold parameters of hyper-connections, sinks and norms in f32 beside bf16.
    let mut model = EditedModel::of_fixture("deepseek_v4/base");
    let mut widened = model.clone();
    for (name, tensor) in &mut model.tensors {
        let narrow = name.contains(".experts.") || name.contains(".attn.w");
        if narrow {
            *tensor = tensor.to_bf16();
            widened.tensors.insert(name.clone(), tensor.widened());
        }
    }
    let found = full_logits(&model.load(&options()), &rows());
    let expected = full_logits(&widened.load(&options()), &rows());
    assert!(distance(&found, &expected) <= TOLERANCE);
}

#[track_caller]
fn assert_refused(result: Result<(), ModelError>, part: &str) {
    let error = result.err().map(|error| error.to_string());
    let error = error.unwrap_or_default();
    assert!(error.contains(part), "{error:?} does not hold {part:?}");
}

#[test]
fn model_type_is_known() {
    let model: Model = load(&fixture("deepseek_v4/base"), DType::F32);
    assert_eq!(model.architecture().class, "DeepseekV4ForCausalLM");
}
