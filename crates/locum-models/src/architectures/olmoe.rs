//! OLMoE (arXiv 2409.02060), as in transformers' `modeling_olmoe.py`.
//!
//! A pre-norm decoder; queries and keys are normalised over the whole projection; every layer's
//! feed-forward is a mixture of experts with a softmax router.

use burn::tensor::Device;
use locum_nn::{
    AttentionOptions, ExpertNames, FeedForward, GroupedQueryAttention, HeadNorm, RoutingRule,
};
use serde_json::Value;

use crate::config::{Fields, HeadDefaults};
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError, MoeConfig, PreNormLayer};

/// An OLMoE language model.
pub type Olmoe = DecoderLm<PreNormLayer<GroupedQueryAttention>>;
/// An OLMoE language model some of whose experts are constants.
pub type SubstitutedOlmoe = SubstitutedDecoderLm<PreNormLayer<GroupedQueryAttention>>;

/// The fields of an OLMoE `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct OlmoeConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// Experts.
    pub moe: MoeConfig,
}

impl ArchitectureConfig for OlmoeConfig {
    const MODEL_TYPE: &'static str = "olmoe";
    const CLASS: &'static str = "OlmoeForCausalLM";
    type Layer = PreNormLayer<GroupedQueryAttention>;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("quantization_config")?;
        let clip = fields.optional_number("clip_qkv")?;
        if let Some(bound) = clip.filter(|bound| *bound < 0.0) {
            return Err(ModelError::field(
                "clip_qkv",
                format!("is {bound}, but a bound cannot be negative"),
            ));
        }
        let hidden = fields.size_or("hidden_size", 2048)?;
        let heads = HeadDefaults {
            heads: 16,
            kv_heads: None,
            head: None,
        };
        let shape = fields.attention_shape(hidden, &heads)?;
        let epsilon = fields.epsilon(1e-5)?;
        let layers = fields.layer_count(16)?;
        let experts = fields.name_in_use(["num_experts", "num_local_experts"])?;
        let (experts, top_k) =
            fields.expert_counts((experts, 64), ("num_experts_per_tok", 8), layers)?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", 50_304)?,
                hidden,
                layers,
                max_positions: fields.size_or("max_position_embeddings", 4096)?,
                epsilon,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.rotary(shape.head, 10_000.0)?,
                cached_elements: shape.cached_elements(),
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::Projection(epsilon),
                bias: false,
                clip,
            },
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or("intermediate_size", 2048)?,
                routing: RoutingRule::softmax(top_k, fields.flag("norm_topk_prob", false)?),
                dtype: fields.dtype()?,
            },
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn layer(&self, layer: usize, device: &Device) -> Self::Layer {
        let hidden = self.decoder.hidden;
        let moe = self
            .moe
            .layer(layer, hidden, "mlp", ExpertNames::PROJ, device);
        PreNormLayer::with_mlp(
            &self.decoder,
            GroupedQueryAttention::new(hidden, self.attention, device),
            FeedForward::Sparse(moe),
            device,
        )
    }
}
