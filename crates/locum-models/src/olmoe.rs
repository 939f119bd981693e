//! OLMoE (arXiv 2409.02060), as in transformers' `modeling_olmoe.py`.
//!
//! A pre-norm decoder; queries and keys are normalised over the whole projection; every layer's
//! feed-forward is a mixture of experts with a softmax router.

use burn::module::Module;
use burn::tensor::{DType, Device, Int, Tensor};
use locum_macros::{MoeLayers, expert_substitution};
use locum_nn::{
    AttentionShape, Embedding, ExpertNames, ExpertsConfig, KvCache, LayerCache, Linear, RmsNorm,
    RotaryEmbedding, RoutedExperts, Scores, SoftmaxRouter, attend, check_parameters,
    load_parameters, none_missing,
};
use locum_substitution::name::LayerName;
use locum_substitution::{
    Dtype, ExpertCounts, LoadWeights, Loaded, PipelineStage, ProcessWeightsAfterLoading, SkipRule,
    Stage, SubstitutionError, TensorInfo, WeightStream,
};
use serde_json::Value;

use crate::ModelError;
use crate::config::Fields;
use crate::language_model::{CausalLm, Limits, Logits};

/// The fields of an OLMoE `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct OlmoeConfig {
    /// Number of tokens.
    pub vocabulary: usize,
    /// The size of a token.
    pub hidden: usize,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query, key and value heads.
    pub attention: AttentionShape,
    /// The longest sequence.
    pub max_positions: usize,
    /// ε of the normalisations.
    pub epsilon: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Bound on queries, keys and values.
    pub clip_qkv: Option<f64>,
    /// Experts of each layer.
    pub experts: Vec<u32>,
    /// Routing.
    pub scores: Scores,
    /// Whether the output head is the embedding.
    pub tied: bool,
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
        let hidden = fields.size("hidden_size")?;
        let heads = fields.size("num_attention_heads")?;
        let kv_heads = fields
            .optional_size("num_key_value_heads")?
            .unwrap_or(heads);
        let head = match fields.optional_size("head_dim")? {
            Some(head) => head,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(ModelError::field(
                    "num_attention_heads",
                    format!("{heads} does not divide hidden_size {hidden}"),
                ));
            }
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::field(
                "num_key_value_heads",
                format!("{kv_heads} does not divide num_attention_heads {heads}"),
            ));
        }
        if !head.is_multiple_of(2) {
            return Err(ModelError::field(
                "head_dim",
                format!("{head} is odd, but rotary embedding needs pairs"),
            ));
        }
        let layers = fields.size("num_hidden_layers")?;
        let experts = ExpertCounts::from_config(fields.map(), &["num_experts"])?
            .unwrap_or(ExpertCounts::Uniform(64));
        let chosen = ExpertCounts::from_config(fields.map(), &["num_experts_per_tok"])?
            .unwrap_or(ExpertCounts::Uniform(8));
        ExpertCounts::check_lengths(&[
            ("num_experts", &experts),
            ("num_experts_per_tok", &chosen),
        ])?;
        let of_layers = |counts: &ExpertCounts, field: &str| -> Result<Vec<u32>, ModelError> {
            (0..layers as u32)
                .map(|layer| {
                    counts
                        .of_layer(layer)
                        .ok_or_else(|| ModelError::field(field, format!("lacks layer {layer}")))
                })
                .collect()
        };
        let experts = of_layers(&experts, "num_experts")?;
        let chosen = of_layers(&chosen, "num_experts_per_tok")?;
        let top_k = chosen[0];
        if let Some(layer) = chosen.iter().position(|&k| k != top_k) {
            return Err(ModelError::field(
                "num_experts_per_tok",
                format!(
                    "is {} in layer {layer} but {top_k} in layer 0: it must be the same in all",
                    chosen[layer]
                ),
            ));
        }
        if let Some(layer) = experts.iter().position(|&e| e < top_k || top_k == 0) {
            return Err(ModelError::field(
                "num_experts_per_tok",
                format!(
                    "is {top_k}, but layer {layer} has {} experts",
                    experts[layer]
                ),
            ));
        }
        let dtype =
            ["torch_dtype", "dtype"]
                .into_iter()
                .find_map(|field| fields.get(field).map(|value| (field, value)))
                .map(|(field, value)| {
                    value.as_str().and_then(Dtype::from_torch_name).ok_or_else(|| {
                    ModelError::field(
                        field,
                        format!("{value} is not supported (supported: float32, float16, bfloat16)"),
                    )
                })
                })
                .transpose()?
                .unwrap_or(Dtype::F32);
        Ok(Self {
            vocabulary: fields.size("vocab_size")?,
            hidden,
            intermediate: fields.size("intermediate_size")?,
            layers,
            attention: AttentionShape {
                heads,
                kv_heads,
                head,
            },
            max_positions: fields
                .optional_size("max_position_embeddings")?
                .unwrap_or(4096),
            epsilon: fields.optional_number("rms_norm_eps")?.unwrap_or(1e-5),
            rope_theta: fields.rope_theta(10_000.0)?,
            clip_qkv: fields.optional_number("clip_qkv")?,
            experts,
            scores: Scores {
                top_k: top_k as usize,
                normalize: fields.flag("norm_topk_prob", false)?,
            },
            tied: fields.flag("tie_word_embeddings", false)?,
            dtype,
        })
    }
}

/// An OLMoE language model; parameter paths are tensor names.
#[expert_substitution(crate = locum_substitution)]
#[derive(Module, Debug)]
pub struct Olmoe {
    #[substitution(layers)]
    model: Decoder,
    lm_head: Option<Linear>,
    #[module(skip)]
    config: OlmoeConfig,
    #[module(skip)]
    activations: DType,
}

#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Decoder {
    embed_tokens: Embedding,
    #[substitution(layers)]
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
}

#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
struct DecoderLayer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    #[substitution(layers)]
    mlp: SparseMoeBlock,
}

#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    #[module(skip)]
    shape: AttentionShape,
    #[module(skip)]
    clip: Option<f64>,
}

#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
struct SparseMoeBlock {
    gate: SoftmaxRouter,
    #[substitution(layers)]
    experts: RoutedExperts,
}

impl Olmoe {
    /// A model without weights, which computes in `activations`.
    #[must_use]
    pub fn new(config: &OlmoeConfig, activations: DType, device: &Device) -> Self {
        let layers = (0..config.layers)
            .map(|layer| DecoderLayer::new(config, layer, device))
            .collect();
        Self {
            model: Decoder {
                embed_tokens: Embedding::new(config.vocabulary, config.hidden, device),
                layers,
                norm: RmsNorm::new(config.hidden, config.epsilon, device),
            },
            lm_head: (!config.tied).then(|| Linear::new(config.hidden, config.vocabulary, device)),
            config: config.clone(),
            activations,
        }
    }

    /// Why a tensor that fits nowhere may be passed over.
    fn skip_rule(&self, name: &str) -> Option<SkipRule> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some(SkipRule::RotaryBuffer);
        }
        if self.config.tied && name == "lm_head.weight" {
            return Some(SkipRule::TiedHead);
        }
        LayerName::parse(name)
            .filter(|name| name.layer as usize >= self.config.layers)
            .map(|_| SkipRule::MultiTokenPrediction)
    }
}

impl DecoderLayer {
    fn new(config: &OlmoeConfig, layer: usize, device: &Device) -> Self {
        let AttentionShape {
            heads,
            kv_heads,
            head,
        } = config.attention;
        let norm = |size| RmsNorm::new(size, config.epsilon, device);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, device);
        let experts = config.experts[layer];
        Self {
            input_layernorm: norm(config.hidden),
            self_attn: Attention {
                q_proj: linear(config.hidden, heads * head),
                k_proj: linear(config.hidden, kv_heads * head),
                v_proj: linear(config.hidden, kv_heads * head),
                o_proj: linear(heads * head, config.hidden),
                q_norm: norm(heads * head),
                k_norm: norm(kv_heads * head),
                shape: config.attention,
                clip: config.clip_qkv,
            },
            post_attention_layernorm: norm(config.hidden),
            mlp: SparseMoeBlock {
                gate: SoftmaxRouter::new(config.hidden, experts as usize, config.scores, device),
                experts: RoutedExperts::new(
                    ExpertsConfig {
                        layer: layer as u32,
                        prefix: format!("model.layers.{layer}.mlp.experts"),
                        num_logical_experts: experts,
                        hidden: config.hidden,
                        intermediate: config.intermediate,
                        names: ExpertNames::PROJ,
                        constant_dtype: config.dtype.clone(),
                    },
                    device,
                ),
            },
        }
    }

    /// `[batch, tokens, hidden]` to the same.
    fn forward(
        &self,
        x: Tensor<3>,
        rotary: &RotaryEmbedding,
        cache: Option<&mut LayerCache>,
    ) -> Tensor<3> {
        let attention =
            self.self_attn
                .forward(self.input_layernorm.forward(x.clone()), rotary, cache);
        let x = x + attention;
        let mixture = self
            .mlp
            .forward(self.post_attention_layernorm.forward(x.clone()));
        x + mixture
    }
}

impl Attention {
    fn forward(
        &self,
        x: Tensor<3>,
        rotary: &RotaryEmbedding,
        cache: Option<&mut LayerCache>,
    ) -> Tensor<3> {
        let clip = |x: Tensor<3>| match self.clip {
            Some(bound) => x.clamp(-bound, bound),
            None => x,
        };
        let shape = self.shape;
        let queries = clip(self.q_norm.forward(self.q_proj.forward(x.clone())));
        let keys = clip(self.k_norm.forward(self.k_proj.forward(x.clone())));
        let values = clip(self.v_proj.forward(x));
        let queries = rotary.forward(shape.split(queries, shape.heads));
        let keys = rotary.forward(shape.split(keys, shape.kv_heads));
        let values = shape.split(values, shape.kv_heads);
        let (keys, values) = match cache {
            Some(cache) => cache.append(keys, values),
            None => (keys, values),
        };
        self.o_proj.forward(attend(queries, keys, values, shape))
    }
}

impl SparseMoeBlock {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let shape @ [batch, tokens, hidden] = x.dims();
        let x = x.reshape([batch * tokens, hidden]);
        let routes = self.gate.forward(x.clone());
        self.experts.forward(x, routes).reshape(shape)
    }
}

impl CausalLm for Olmoe {
    fn limits(&self) -> Limits {
        Limits {
            vocabulary: self.config.vocabulary,
            max_positions: self.config.max_positions,
            layers: self.config.layers,
            cache_bytes_per_token: KvCache::bytes_per_token(
                self.config.layers,
                self.config.attention.kv_heads,
                self.config.attention.head,
                self.activations,
            ),
        }
    }

    fn activations(&self) -> DType {
        self.activations
    }

    fn forward(&self, ids: Tensor<2, Int>, cache: &mut KvCache, wanted: Logits) -> Tensor<3> {
        let tokens = ids.dims()[1];
        let rotary = RotaryEmbedding::new(
            self.config.attention.head,
            self.config.rope_theta,
            cache.tokens()..cache.tokens() + tokens,
            &ids.device(),
        );
        let mut x = self.model.embed_tokens.forward(ids, self.activations);
        for (index, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward(x, &rotary, cache.layer(index));
        }
        cache.advance(tokens);
        let x = match wanted {
            Logits::All => x,
            Logits::Last => x.slice_dim(1, tokens.saturating_sub(1)..tokens),
        };
        let x = self.model.norm.forward(x);
        match &self.lm_head {
            Some(head) => head.forward(x),
            None => self.model.embed_tokens.head(x),
        }
        .cast(DType::F32)
    }
}

impl PipelineStage for Olmoe {
    fn stage(&self) -> Stage {
        Stage::whole(self.config.layers as u32)
    }
}

impl LoadWeights for Olmoe {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        // Into a clone, which shares its parameters: an error leaves this model as it was.
        let (model, loaded) = load_parameters(self.clone(), weights, |name| self.skip_rule(name))?;
        *self = model;
        Ok(loaded)
    }

    fn check_weights(
        &self,
        tensors: &mut dyn Iterator<Item = TensorInfo>,
    ) -> Result<(), SubstitutionError> {
        check_parameters(self.clone(), tensors, |name| self.skip_rule(name))
    }
}

impl ProcessWeightsAfterLoading for Olmoe {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        none_missing(self)
    }
}
