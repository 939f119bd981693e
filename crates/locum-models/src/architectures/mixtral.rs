//! Mixtral (arXiv 2401.04088), as in transformers' `modeling_mixtral.py`.
//!
//! A pre-norm decoder; every layer's feed-forward is a mixture of experts with a softmax router. The
//! weights of the chosen experts add up to one, which is the paper's softmax over the top k.

use burn::tensor::Device;
use locum_nn::{AttentionOptions, ExpertNames, GroupedQueryAttention, HeadNorm, RoutingRule};
use serde_json::{Value, json};

use crate::config::{Fields, HeadDefaults};
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError, MoeConfig, PreNormLayer};

/// A Mixtral language model.
pub type Mixtral = DecoderLm<PreNormLayer<GroupedQueryAttention>>;
/// A Mixtral language model some of whose experts are constants.
pub type SubstitutedMixtral = SubstitutedDecoderLm<PreNormLayer<GroupedQueryAttention>>;

/// The fields of a Mixtral `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtralConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// Experts.
    pub moe: MoeConfig,
}

impl ArchitectureConfig for MixtralConfig {
    const MODEL_TYPE: &'static str = "mixtral";
    const CLASS: &'static str = "MixtralForCausalLM";
    type Layer = PreNormLayer<GroupedQueryAttention>;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("quantization_config")?;
        // `router_jitter_noise` is for training only; the family's routing has no other options.
        fields.fixed("norm_topk_prob", json!(true))?;
        let max_positions = fields.size_or("max_position_embeddings", 131_072)?;
        fields.refuse_sliding_window(true, None, max_positions)?;
        let hidden = fields.size_or("hidden_size", 4096)?;
        let heads = HeadDefaults {
            heads: 32,
            kv_heads: Some(8),
            head: None,
        };
        let shape = fields.attention_shape(hidden, &heads)?;
        let layers = fields.layer_count(32)?;
        let experts = fields.name_in_use(["num_local_experts", "num_experts"])?;
        let (experts, top_k) =
            fields.expert_counts((experts, 8), ("num_experts_per_tok", 2), layers)?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", 32_000)?,
                hidden,
                layers,
                max_positions,
                epsilon: fields.epsilon(1e-5)?,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.rotary(shape.head, 1_000_000.0)?,
                cached_elements: shape.cached_elements(),
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::None,
                bias: false,
                clip: None,
            },
            moe: MoeConfig {
                experts,
                intermediate: fields.size_or("intermediate_size", 14_336)?,
                routing: RoutingRule::softmax(top_k, true),
                dtype: fields.dtype()?,
            },
        })
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    fn layer(&self, layer: usize, device: &Device) -> Self::Layer {
        let hidden = self.decoder.hidden;
        PreNormLayer::with_block_sparse_moe(
            &self.decoder,
            GroupedQueryAttention::new(hidden, self.attention, device),
            self.moe
                .layer(layer, hidden, "block_sparse_moe", ExpertNames::W123, device),
            device,
        )
    }
}
