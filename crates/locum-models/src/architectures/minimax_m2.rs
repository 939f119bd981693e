//! MiniMax-M2, as in transformers' `modeling_minimax_m2.py`.
//!
//! A pre-norm decoder; queries and keys are normalised over the whole projection, and only the first
//! elements of a head are rotated. Every layer's feed-forward is a mixture of experts: scores are
//! sigmoids, a correction beside the router is added to them for the choice alone, and the weights
//! of the chosen experts add up to one.

use burn::tensor::Device;
use locum_nn::{
    AttentionOptions, ExpertNames, GroupedQueryAttention, HeadNorm, RoutingRule, Scoring,
};
use serde_json::{Value, json};

use crate::config::{Fields, HeadDefaults};
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError, MoeConfig, PreNormLayer};

/// A MiniMax-M2 language model.
pub type MiniMaxM2 = DecoderLm<PreNormLayer<GroupedQueryAttention>>;
/// A MiniMax-M2 language model some of whose experts are constants.
pub type SubstitutedMiniMaxM2 = SubstitutedDecoderLm<PreNormLayer<GroupedQueryAttention>>;

/// The fields of a MiniMax-M2 `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct MiniMaxM2Config {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// Experts.
    pub moe: MoeConfig,
    /// Whether there is a correction of the choice of experts.
    pub correction: bool,
    /// Layers of multi-token prediction after the last, which are not run.
    pub mtp_layers: u32,
}

impl ArchitectureConfig for MiniMaxM2Config {
    const MODEL_TYPE: &'static str = "minimax_m2";
    const CLASS: &'static str = "MiniMaxM2ForCausalLM";
    type Layer = PreNormLayer<GroupedQueryAttention>;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("quantization_config")?;
        fields.only("scoring_func", &["sigmoid"])?;
        fields.fixed("norm_topk_prob", json!(true))?;
        fields.fixed("routed_scaling_factor", json!(1))?;
        fields.fixed("use_qk_norm", json!(true))?;
        fields.only("qk_norm_type", &["per_layer"])?;
        // What the family's predecessors have: linear attention, weighted residuals, a shared expert.
        fields.all("attn_type_list", &json!(1))?;
        fields.fixed("layernorm_full_attention_beta", json!(1))?;
        fields.fixed("layernorm_mlp_beta", json!(1))?;
        fields.fixed("shared_intermediate_size", json!(0))?;
        let max_positions = fields.size_or("max_position_embeddings", 196_608)?;
        fields.refuse_sliding_window(true, None, max_positions)?;
        let hidden = fields.size_or("hidden_size", 3072)?;
        let heads = HeadDefaults {
            heads: 48,
            kv_heads: Some(8),
            head: Some(128),
        };
        let shape = fields.attention_shape(hidden, &heads)?;
        let epsilon = fields.epsilon(1e-6)?;
        let layers = fields.layer_count(62)?;
        let experts = fields.name_in_use(["num_local_experts", "num_experts"])?;
        let (experts, top_k) =
            fields.expert_counts((experts, 256), ("num_experts_per_tok", 8), layers)?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", 200_064)?,
                hidden,
                layers,
                max_positions,
                epsilon,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.partial_rotary(shape.head, 5_000_000.0)?,
                cached_elements: shape.cached_elements(),
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::Projection(epsilon),
                bias: false,
                clip: None,
            },
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or("intermediate_size", 1536)?,
                routing: RoutingRule {
                    scoring: Scoring::Sigmoid,
                    ..RoutingRule::softmax(top_k, true)
                },
                dtype: fields.dtype()?,
            },
            correction: fields.flag("use_routing_bias", true)?,
            mtp_layers: fields.count_or("num_mtp_modules", 0)?,
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn mtp_layers(&self) -> u32 {
        self.mtp_layers
    }

    fn layer(&self, layer: usize, device: &Device) -> Self::Layer {
        let hidden = self.decoder.hidden;
        let mut moe = self
            .moe
            .layer(layer, hidden, "block_sparse_moe", ExpertNames::W123, device);
        if self.correction {
            moe = moe.with_correction(self.moe.experts_of(layer) as usize, device);
        }
        PreNormLayer::with_block_sparse_moe(
            &self.decoder,
            GroupedQueryAttention::new(hidden, self.attention, device),
            moe,
            device,
        )
    }
}
