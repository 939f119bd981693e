//! DeepSeek-V4, as in transformers' `modeling_deepseek_v4.py`.
//!
//! Several residual streams, joined by hyper-connections. Attention sees a window, and beyond it, by
//! layer, nothing, some compressed blocks of tokens, or all of them. Every layer has routed experts
//! and a shared one, with clamped activations; the first layers choose experts by token, the others
//! by corrected scores.

use burn::tensor::{DType, Device};
use locum_nn::{
    CompressedAttention, CompressedOptions, Compression, ExpertNames, ExpertsConfig, HyperOptions,
    IndexOptions, RoutingRule, Scoring, SparseMoe,
};
use locum_substitution::SubstitutionSpec;
use serde_json::{Value, json};

use crate::config::{Fields, RotaryPair, Sight};
use crate::hyper_connected::{
    CachedElements, HyperConnectedConfig, HyperConnectedLayer, HyperConnectedLm,
    SubstitutedHyperConnectedLm,
};
use crate::registry::{Built, Family};
use crate::{ModelError, MoeConfig};

/// A DeepSeek-V4 language model.
pub type DeepseekV4 = HyperConnectedLm;
/// A DeepSeek-V4 language model some of whose experts are constants.
pub type SubstitutedDeepseekV4 = SubstitutedHyperConnectedLm;

/// The fields of a DeepSeek-V4 `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepseekV4Config {
    /// What the decoder is beside its layers.
    pub decoder: HyperConnectedConfig,
    /// Attention, layer by layer.
    pub attention: Vec<CompressedOptions>,
    /// Routed experts.
    pub moe: MoeConfig,
    /// Whether a layer chooses experts by token.
    pub by_token: Vec<bool>,
    /// Bound on the experts' activations (`swiglu_limit`).
    pub limit: f64,
}

impl DeepseekV4Config {
    /// Reads a `config.json`; absent fields have the defaults of transformers' `DeepseekV4Config`.
    ///
    /// # Errors
    ///
    /// A field that is unusable, or one that would change the result and is not supported.
    pub fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("mlp_bias")?;
        fields.refuse_quantization()?;
        fields.fixed("num_key_value_heads", json!(1))?;
        fields.fixed("n_shared_experts", json!(1))?;
        // The family's routers normalise, whatever this says: of false, nobody knows what it means.
        fields.fixed("norm_topk_prob", json!(true))?;
        let layers = fields.layer_count(43)?;
        let max_positions = fields.size_or("max_position_embeddings", 1_048_576)?;
        let epsilon = fields.number_or("rms_norm_eps", 1e-6)?;
        let head = fields.size_or("head_dim", 512)?;
        let rotary = fields.rotary_pair(head, max_positions)?;
        let attention = attention(&fields, layers, head, &rotary, epsilon)?;
        let (experts, top_k) = fields.expert_counts(
            (
                fields.name_in_use(["n_routed_experts", "num_local_experts"])?,
                256,
            ),
            ("num_experts_per_tok", 6),
            layers,
        )?;
        let intermediate = fields.name_in_use(["moe_intermediate_size", "intermediate_size"])?;
        let size = |options: &CompressedOptions| {
            let (elements, block) = options.cached_per_block();
            elements as f64 / block as f64
        };
        Ok(Self {
            decoder: HyperConnectedConfig {
                vocabulary: fields.size_or("vocab_size", 129_280)?,
                hidden: fields.size_or("hidden_size", 4096)?,
                layers,
                max_positions,
                epsilon,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: rotary.main,
                hyper: HyperOptions {
                    streams: fields.size_or("hc_mult", 4)?,
                    iterations: fields.size_or("hc_sinkhorn_iters", 20)?,
                    epsilon: fields.number_or("hc_eps", 1e-6)?,
                    norm_epsilon: epsilon,
                },
                cached: CachedElements {
                    per_token: attention.iter().map(size).sum(),
                    per_sequence: attention
                        .iter()
                        .map(CompressedOptions::cached_per_sequence)
                        .sum(),
                },
                mtp_layers: fields.count_or("num_nextn_predict_layers", 1)?,
            },
            attention,
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or(intermediate, 2048)?,
                routing: routing(&fields, top_k)?,
                dtype: fields.dtype()?,
            },
            by_token: fields.routed_by_token(layers)?,
            limit: fields.positive_or("swiglu_limit", 10.0)?,
        })
    }

    /// A model without weights, which computes in `activations`.
    #[must_use]
    pub fn build(&self, activations: DType, device: &Device) -> DeepseekV4 {
        HyperConnectedLm::new(&self.decoder, activations, device, |layer| {
            self.layer(layer, device)
        })
    }

    fn layer(&self, layer: usize, device: &Device) -> HyperConnectedLayer {
        let hidden = self.decoder.hidden;
        let attention = CompressedAttention::new(hidden, self.attention[layer].clone(), device);
        let experts = ExpertsConfig {
            layer: layer as u32,
            prefix: format!("layers.{layer}.ffn.experts"),
            num_logical_experts: self.moe.experts_of(layer),
            hidden,
            intermediate: self.moe.intermediate,
            names: ExpertNames::W123,
            constant_dtype: self.moe.dtype.clone(),
        };
        let moe = SparseMoe::new(experts, self.moe.routing, device).clamped(
            hidden,
            self.moe.intermediate,
            self.limit,
            device,
        );
        let moe = if self.by_token[layer] {
            moe.with_experts_by_token(self.decoder.vocabulary, device)
        } else {
            moe.with_router_bias(device)
        };
        HyperConnectedLayer::new(&self.decoder, attention, moe, device)
    }
}

impl Family for DeepseekV4Config {
    const MODEL_TYPE: &'static str = "deepseek_v4";
    const CLASS: &'static str = "DeepseekV4ForCausalLM";

    fn read(config: &Value) -> Result<Self, ModelError> {
        Self::from_json(config)
    }

    fn substituted(
        &self,
        spec: &SubstitutionSpec,
        activations: DType,
        device: &Device,
    ) -> Result<Built, ModelError> {
        let model = SubstitutedDeepseekV4::try_new(self.build(activations, device), spec)?;
        let moe_layers = model.core().moe_layers();
        Ok(Built {
            moe_layers: moe_layers.map(|(i, t)| (i.clone(), t.clone())).collect(),
            model: Box::new(model),
        })
    }
}

/// The attention of each layer.
fn attention(
    fields: &Fields<'_>,
    layers: usize,
    head: usize,
    rotary: &RotaryPair,
    epsilon: f64,
) -> Result<Vec<CompressedOptions>, ModelError> {
    let (heads, groups) = (
        fields.size_or("num_attention_heads", 64)?,
        fields.size_or("o_groups", 8)?,
    );
    if !heads.saturating_mul(head).is_multiple_of(groups) {
        return Err(ModelError::field(
            "o_groups",
            format!("{groups} does not divide {heads} heads of {head} elements"),
        ));
    }
    let window = CompressedOptions {
        heads,
        head,
        query_latent: fields.size_or("q_lora_rank", 1024)?,
        window: fields.size_or("sliding_window", 128)?,
        groups,
        group_size: fields.size_or("o_lora_rank", 1024)?,
        rotary: rotary.main.clone(),
        epsilon,
        compression: None,
    };
    let index = IndexOptions {
        heads: fields.size_or("index_n_heads", 64)?,
        head: fields.size_or("index_head_dim", 128)?,
        chosen: fields.size_or("index_topk", 512)?,
    };
    let rotated = rotary.compress.dimensions;
    if index.head < rotated {
        return Err(ModelError::field(
            "index_head_dim",
            format!("is {}, but {rotated} elements of a head rotate", index.head),
        ));
    }
    let [some, all] = fields.blocks()?;
    let compressed = |block, index| CompressedOptions {
        rotary: rotary.compress.clone(),
        compression: Some(Compression { block, index }),
        ..window.clone()
    };
    let sights = fields.sights(layers)?.into_iter();
    let options = sights.map(|sight| match sight {
        Sight::Window => window.clone(),
        Sight::SomeBlocks => compressed(some, Some(index)),
        Sight::AllBlocks => compressed(all, None),
    });
    Ok(options.collect())
}

fn routing(fields: &Fields<'_>, top_k: usize) -> Result<RoutingRule, ModelError> {
    const SCORING: &str = "scoring_func";
    fields.only(SCORING, &["sqrtsoftplus", "sigmoid"])?;
    let scoring = match fields.get(SCORING).and_then(Value::as_str) {
        Some("sigmoid") => Scoring::Sigmoid,
        _ => Scoring::SqrtSoftplus,
    };
    Ok(RoutingRule {
        top_k,
        scoring,
        normalize: true,
        epsilon: 1e-20,
        scale: fields.number_or("routed_scaling_factor", 1.5)? as f32,
        groups: None,
    })
}
