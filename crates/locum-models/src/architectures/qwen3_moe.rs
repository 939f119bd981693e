//! Qwen3-MoE (arXiv 2505.09388), as in transformers' `modeling_qwen3_moe.py`.
//!
//! A pre-norm decoder; queries and keys are normalised head by head, and a head's size is not tied to
//! the hidden size. The feed-forward of some layers may be dense; that of the others is a mixture of
//! experts with a softmax router.

use burn::tensor::Device;
use locum_nn::{
    AttentionOptions, ExpertNames, FeedForward, GatedMlp, GroupedQueryAttention, HeadNorm,
    RoutingRule,
};
use serde_json::Value;

use crate::config::{Fields, HeadDefaults};
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError, MoeConfig, PreNormLayer};

/// A Qwen3-MoE language model.
pub type Qwen3Moe = DecoderLm<PreNormLayer<GroupedQueryAttention>>;
/// A Qwen3-MoE language model some of whose experts are constants.
pub type SubstitutedQwen3Moe = SubstitutedDecoderLm<PreNormLayer<GroupedQueryAttention>>;

/// The fields of a Qwen3-MoE `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen3MoeConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// Experts.
    pub moe: MoeConfig,
    /// The size of a dense layer's feed-forward between its projections.
    pub dense_intermediate: usize,
}

impl ArchitectureConfig for Qwen3MoeConfig {
    const MODEL_TYPE: &'static str = "qwen3_moe";
    const CLASS: &'static str = "Qwen3MoeForCausalLM";
    type Layer = PreNormLayer<GroupedQueryAttention>;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("quantization_config")?;
        fields.refuse("dual_chunk_attention_config")?;
        let max_positions = fields.size_or("max_position_embeddings", 32_768)?;
        let windowed = fields.flag("use_sliding_window", false)?;
        fields.refuse_sliding_window(windowed, Some(4096), max_positions)?;
        let hidden = fields.size_or("hidden_size", 2048)?;
        let heads = HeadDefaults {
            heads: 32,
            kv_heads: Some(4),
            head: None,
        };
        let shape = fields.attention_shape(hidden, &heads)?;
        let epsilon = fields.epsilon(1e-6)?;
        let layers = fields.layer_count(24)?;
        let experts = fields.name_in_use(["num_experts", "num_local_experts"])?;
        let (experts, top_k) = fields.sparse_expert_counts(
            (experts, 128),
            ("num_experts_per_tok", 8),
            &fields.sparse_layers(layers)?,
        )?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", 151_936)?,
                hidden,
                layers,
                max_positions,
                epsilon,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.rotary(shape.head, 10_000.0)?,
                cached_elements: shape.cached_elements(),
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::Head(epsilon),
                bias: false,
                clip: None,
            },
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or("moe_intermediate_size", 768)?,
                routing: RoutingRule::softmax(top_k, fields.flag("norm_topk_prob", false)?),
                dtype: fields.dtype()?,
            },
            dense_intermediate: fields.size_or("intermediate_size", 6144)?,
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn layer(&self, layer: usize, device: &Device) -> Self::Layer {
        let hidden = self.decoder.hidden;
        let mlp = if self.moe.experts_of(layer) == 0 {
            FeedForward::Dense(GatedMlp::new(hidden, self.dense_intermediate, device))
        } else {
            FeedForward::Sparse(
                self.moe
                    .layer(layer, hidden, "mlp", ExpertNames::PROJ, device),
            )
        };
        PreNormLayer::with_mlp(
            &self.decoder,
            GroupedQueryAttention::new(hidden, self.attention, device),
            mlp,
            device,
        )
    }
}
