//! OLMoE (arXiv 2409.02060), as in transformers' `modeling_olmoe.py`.
//!
//! A pre-norm decoder; queries and keys are normalised over the whole projection; every layer's
//! feed-forward is a mixture of experts with a softmax router.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};
use locum_macros::MoeLayers;
use locum_nn::{
    AttentionOptions, ExpertNames, ExpertsConfig, GroupedQueryAttention, HeadNorm, RmsNorm,
    RoutingRule, SparseMoe, Step,
};
use locum_substitution::Dtype;
use serde_json::Value;

use crate::ModelError;
use crate::config::Fields;
use crate::decoder::{DecoderConfig, DecoderLayer, DecoderLm, SubstitutedDecoderLm};

/// An OLMoE language model.
pub type Olmoe = DecoderLm<OlmoeLayer>;
/// An OLMoE language model some of whose experts are constants.
pub type SubstitutedOlmoe = SubstitutedDecoderLm<OlmoeLayer>;

/// The fields of an OLMoE `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct OlmoeConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: AttentionOptions,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// Experts of each layer.
    pub experts: Vec<u32>,
    /// Routing.
    pub routing: RoutingRule,
    /// The type that the checkpoint declares, which constants are held in.
    pub dtype: Dtype,
}

impl OlmoeConfig {
    /// Reads a `config.json`; absent fields have the defaults of transformers' `OlmoeConfig`.
    ///
    /// # Errors
    ///
    /// A field that is missing or unusable, or one that would change the result and is not
    /// supported.
    pub fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("quantization_config")?;
        let shape = fields.attention_shape()?;
        let epsilon = fields.optional_number("rms_norm_eps")?.unwrap_or(1e-5);
        let layers = fields.size("num_hidden_layers")?;
        let (experts, top_k) =
            fields.expert_counts(("num_experts", 64), ("num_experts_per_tok", 8), layers)?;
        Ok(Self {
            decoder: DecoderConfig {
                vocabulary: fields.size("vocab_size")?,
                hidden: fields.size("hidden_size")?,
                layers,
                max_positions: fields
                    .optional_size("max_position_embeddings")?
                    .unwrap_or(4096),
                epsilon,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary: fields.rotary(shape.head, 10_000.0)?,
                cached_elements: 2 * shape.kv_heads * shape.head,
            },
            attention: AttentionOptions {
                shape,
                norm: HeadNorm::Projection(epsilon),
                bias: false,
                clip: fields.optional_number("clip_qkv")?,
            },
            intermediate: fields.size("intermediate_size")?,
            experts,
            routing: RoutingRule::softmax(top_k, fields.flag("norm_topk_prob", false)?),
            dtype: fields.dtype()?,
        })
    }

    /// A model without weights, which computes in `activations`.
    #[must_use]
    pub fn build(&self, activations: DType, device: &Device) -> Olmoe {
        DecoderLm::new(&self.decoder, activations, device, |layer| {
            OlmoeLayer::new(self, layer, device)
        })
    }
}

/// A decoder layer of OLMoE.
#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct OlmoeLayer {
    input_layernorm: RmsNorm,
    self_attn: GroupedQueryAttention,
    post_attention_layernorm: RmsNorm,
    #[substitution(layers)]
    mlp: SparseMoe,
}

impl OlmoeLayer {
    fn new(config: &OlmoeConfig, layer: usize, device: &Device) -> Self {
        let DecoderConfig {
            hidden, epsilon, ..
        } = config.decoder;
        let norm = || RmsNorm::new(hidden, epsilon, device);
        Self {
            input_layernorm: norm(),
            self_attn: GroupedQueryAttention::new(hidden, config.attention, device),
            post_attention_layernorm: norm(),
            mlp: SparseMoe::new(
                ExpertsConfig {
                    layer: layer as u32,
                    prefix: format!("model.layers.{layer}.mlp.experts"),
                    num_logical_experts: config.experts[layer],
                    hidden,
                    intermediate: config.intermediate,
                    names: ExpertNames::PROJ,
                    constant_dtype: config.dtype.clone(),
                },
                config.routing,
                device,
            ),
        }
    }
}

impl DecoderLayer for OlmoeLayer {
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2> {
        let normed = self.input_layernorm.forward(x.clone());
        let x = x + self.self_attn.forward(normed, layer, step);
        let normed = self.post_attention_layernorm.forward(x.clone());
        x + self.mlp.forward(normed)
    }
}
