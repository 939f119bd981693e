//! Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671), as in transformers' `modeling_qwen2_moe.py`.
//!
//! A pre-norm decoder whose queries, keys and values have a bias. The feed-forward of some layers is
//! dense; that of the others is a mixture of experts with a softmax router, beside a shared expert
//! which every token goes through, weighted by a sigmoid gate of its own.

use burn::tensor::Device;
use locum_nn::{
    AttentionOptions, ExpertNames, FeedForward, GatedMlp, GroupedQueryAttention, HeadNorm,
    RoutingRule,
};
use serde_json::Value;

use crate::config::{Fields, HeadDefaults};
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError, MoeConfig, PreNormLayer};

/// A Qwen2-MoE language model.
pub type Qwen2Moe = DecoderLm<PreNormLayer<GroupedQueryAttention>>;
/// A Qwen2-MoE language model some of whose experts are constants.
pub type SubstitutedQwen2Moe = SubstitutedDecoderLm<PreNormLayer<GroupedQueryAttention>>;

/// The fields of a Qwen2-MoE `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct Qwen2MoeConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// Routed experts.
    pub moe: MoeConfig,
    /// The size of the shared expert between its projections.
    pub shared_intermediate: usize,
    /// The size of a dense layer's feed-forward between its projections.
    pub dense_intermediate: usize,
}

impl ArchitectureConfig for Qwen2MoeConfig {
    const MODEL_TYPE: &'static str = "qwen2_moe";
    const CLASS: &'static str = "Qwen2MoeForCausalLM";
    type Layer = PreNormLayer<GroupedQueryAttention>;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("quantization_config")?;
        fields.refuse("dual_chunk_attention_config")?;
        let max_positions = fields.size_or("max_position_embeddings", 32_768)?;
        let windowed = fields.flag("use_sliding_window", false)?;
        fields.refuse_sliding_window(windowed, Some(4096), max_positions)?;
        let hidden = fields.size_or("hidden_size", 2048)?;
        let heads = HeadDefaults {
            heads: 16,
            kv_heads: Some(16),
            head: None,
        };
        let shape = fields.attention_shape(hidden, &heads)?;
        let layers = fields.layer_count(24)?;
        let (experts, top_k) = fields.sparse_expert_counts(
            ("num_experts", 60),
            ("num_experts_per_tok", 4),
            &fields.sparse_layers(layers)?,
        )?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", 151_936)?,
                hidden,
                layers,
                max_positions,
                epsilon: fields.epsilon(1e-6)?,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.rotary(shape.head, 10_000.0)?,
                cached_elements: shape.cached_elements(),
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::None,
                bias: fields.flag("qkv_bias", true)?,
                clip: None,
            },
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or("moe_intermediate_size", 1408)?,
                routing: RoutingRule::softmax(top_k, fields.flag("norm_topk_prob", false)?),
                dtype: fields.dtype()?,
            },
            shared_intermediate: fields.size_or("shared_expert_intermediate_size", 5632)?,
            dense_intermediate: fields.size_or("intermediate_size", 5632)?,
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
            let routed = self
                .moe
                .layer(layer, hidden, "mlp", ExpertNames::PROJ, device);
            FeedForward::Sparse(routed.with_gated_shared_expert(
                hidden,
                self.shared_intermediate,
                device,
            ))
        };
        PreNormLayer::with_mlp(
            &self.decoder,
            GroupedQueryAttention::new(hidden, self.attention, device),
            mlp,
            device,
        )
    }
}
