//! The decoder of DeepSeek-V4: several residual streams, joined by hyper-connections, under the names
//! that its checkpoints have.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use locum_macros::{MoeLayers, expert_substitution};
use locum_nn::{
    ClampedMlp, CompressedAttention, Embedding, ExpertObserver, HyperConnection, HyperOptions,
    KvCache, Linear, RmsNorm, RotaryConfig, SelfAttention, SparseMoe, Step, check_parameters,
    load_parameters, none_missing,
};
use locum_substitution::name::LayerName;
use locum_substitution::{
    LoadWeights, Loaded, PipelineStage, ProcessWeightsAfterLoading, SkipRule, Stage,
    SubstitutionError, TensorInfo, WeightStream,
};

use crate::language_model::{CausalLm, Limits, Logits};

/// What such a decoder is, beside its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct HyperConnectedConfig {
    /// Number of tokens.
    pub vocabulary: usize,
    /// The size of a token.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// The longest sequence.
    pub max_positions: usize,
    /// ε of all normalisations.
    pub epsilon: f64,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Positions of layers that see their window only.
    pub rotary: RotaryConfig,
    /// The residual streams.
    pub hyper: HyperOptions,
    /// What the cache holds.
    pub cached: CachedElements,
    /// Layers of multi-token prediction (MTP) after the decoder's. They are not built.
    pub mtp_layers: u32,
}

/// Elements that the cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CachedElements {
    /// Per token, of all layers together.
    pub per_token: f64,
    /// Per sequence beside that, at most.
    pub per_sequence: usize,
}

/// A decoder layer; between its blocks is a stack of streams, `[tokens, streams, hidden]`.
#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct HyperConnectedLayer {
    attn_norm: RmsNorm,
    attn: CompressedAttention,
    hc_attn_fn: Param<Tensor<2>>,
    hc_attn_base: Param<Tensor<1>>,
    hc_attn_scale: Param<Tensor<1>>,
    ffn_norm: RmsNorm,
    #[substitution(layers)]
    ffn: SparseMoe<ClampedMlp>,
    hc_ffn_fn: Param<Tensor<2>>,
    hc_ffn_base: Param<Tensor<1>>,
    hc_ffn_scale: Param<Tensor<1>>,
    #[module(skip)]
    hyper: HyperOptions,
}

impl HyperConnectedLayer {
    /// A layer, to be loaded.
    #[must_use]
    pub fn new(
        config: &HyperConnectedConfig,
        attn: CompressedAttention,
        ffn: SparseMoe<ClampedMlp>,
        device: &Device,
    ) -> Self {
        let norm = || RmsNorm::new(config.hidden, config.epsilon, device);
        let hyper = || config.hyper.parameters(config.hidden, device);
        let (hc_attn_fn, hc_attn_base, hc_attn_scale) = hyper();
        let (hc_ffn_fn, hc_ffn_base, hc_ffn_scale) = hyper();
        Self {
            attn_norm: norm(),
            attn,
            hc_attn_fn,
            hc_attn_base,
            hc_attn_scale,
            ffn_norm: norm(),
            ffn,
            hc_ffn_fn,
            hc_ffn_base,
            hc_ffn_scale,
            hyper: config.hyper,
        }
    }

    /// Computes the tokens of a step, as the model's layer number `layer`.
    ///
    /// # Shapes
    ///
    /// `[tokens, streams, hidden]` to the same; `ids` `[tokens]`.
    fn forward(
        &self,
        streams: Tensor<3>,
        ids: &Tensor<1, Int>,
        layer: usize,
        step: &mut Step<'_>,
    ) -> Tensor<3> {
        let dtype = streams.dtype();
        let around_attention = HyperConnection::new(
            self.hyper,
            &self.hc_attn_fn,
            &self.hc_attn_base,
            &self.hc_attn_scale,
        );
        let (x, mixing) = around_attention.enter(&streams);
        let x = self.attn_norm.forward(x).cast(dtype);
        let y = self.attn.forward(x, layer, step);
        let streams = mixing.leave(streams, y);
        let around_experts = HyperConnection::new(
            self.hyper,
            &self.hc_ffn_fn,
            &self.hc_ffn_base,
            &self.hc_ffn_scale,
        );
        let (x, mixing) = around_experts.enter(&streams);
        let x = self.ffn_norm.forward(x).cast(dtype);
        let y = self.ffn.forward_tokens(x, ids, step.observer());
        mixing.leave(streams, y)
    }
}

impl eplb::DecoderLayer for HyperConnectedLayer {
    type Moe = SparseMoe<ClampedMlp>;

    fn feed_forward(&self) -> eplb::FeedForward<'_, Self::Moe> {
        eplb::FeedForward::Moe(&self.ffn)
    }
}

/// A causal language model of such layers; parameter paths are tensor names.
#[expert_substitution(name = SubstitutedHyperConnectedLm, crate = locum_substitution)]
#[derive(Module, Debug)]
pub struct HyperConnectedLm {
    embed: Embedding,
    #[substitution(layers)]
    layers: Vec<HyperConnectedLayer>,
    hc_head_fn: Param<Tensor<2>>,
    hc_head_base: Param<Tensor<1>>,
    hc_head_scale: Param<Tensor<1>>,
    norm: RmsNorm,
    head: Option<Linear>,
    #[module(skip)]
    config: HyperConnectedConfig,
    #[module(skip)]
    activations: DType,
}

impl HyperConnectedLm {
    /// A model without weights, which computes in `activations`.
    #[must_use]
    pub fn new(
        config: &HyperConnectedConfig,
        activations: DType,
        device: &Device,
        layer: impl FnMut(usize) -> HyperConnectedLayer,
    ) -> Self {
        let (hc_head_fn, hc_head_base, hc_head_scale) =
            config.hyper.collapse_parameters(config.hidden, device);
        Self {
            embed: Embedding::new(config.vocabulary, config.hidden, device),
            layers: (0..config.layers).map(layer).collect(),
            hc_head_fn,
            hc_head_base,
            hc_head_scale,
            norm: RmsNorm::new(config.hidden, config.epsilon, device),
            head: (!config.tied).then(|| Linear::new(config.hidden, config.vocabulary, device)),
            config: config.clone(),
            activations,
        }
    }

    /// The decoder layers.
    #[must_use]
    pub fn layers(&self) -> &[HyperConnectedLayer] {
        &self.layers
    }

    /// Why a tensor that fits nowhere may be passed over.
    fn skip_rule(&self, name: &str) -> Option<SkipRule> {
        if self.config.tied && name == "head.weight" {
            return Some(SkipRule::TiedHead);
        }
        let layers = self.config.layers as u32;
        let mtp = layers..layers.saturating_add(self.config.mtp_layers);
        let beyond = LayerName::parse(name).is_some_and(|name| mtp.contains(&name.layer));
        (beyond || name.starts_with("mtp.")).then_some(SkipRule::MultiTokenPrediction)
    }
}

impl CausalLm for HyperConnectedLm {
    fn limits(&self) -> Limits {
        let size = self.activations.size();
        Limits {
            vocabulary: self.config.vocabulary,
            max_positions: self.config.max_positions,
            layers: self.config.layers,
            cache_bytes_per_token: (self.config.cached.per_token * size as f64).ceil() as usize,
            cache_bytes_per_sequence: self.config.cached.per_sequence * size,
        }
    }

    fn activations(&self) -> DType {
        self.activations
    }

    fn forward_observed(
        &self,
        ids: &[Vec<i64>],
        caches: &mut [KvCache],
        wanted: Logits,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        let device = self.embed.weight.lazy_device();
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let mut step = Step::new(&lengths, caches, &self.config.rotary, &device).observed(observer);
        let ids = ids.concat();
        let tokens = ids.len();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [tokens]), &device);
        let x = self.embed.forward(ids.clone(), self.activations);
        let mut streams = x
            .unsqueeze_dim::<3>(1)
            .repeat_dim(1, self.config.hyper.streams);
        for (index, layer) in self.layers.iter().enumerate() {
            streams = layer.forward(streams, &ids, index, &mut step);
        }
        let streams = match wanted {
            Logits::All => streams,
            Logits::None => {
                step.finish();
                return Tensor::zeros([0, self.config.vocabulary], (&device, DType::F32));
            }
            Logits::Last => {
                let last: Vec<i64> = step.last_tokens().map(|token| token as i64).collect();
                let sequences = last.len();
                let last = TensorData::new(last, [sequences]);
                streams.select(0, Tensor::from_data(last, &device))
            }
        };
        step.finish();
        let after_layers = HyperConnection::new(
            self.config.hyper,
            &self.hc_head_fn,
            &self.hc_head_base,
            &self.hc_head_scale,
        );
        let x = after_layers.collapse(&streams);
        let x = self.norm.forward(x).cast(self.activations);
        match &self.head {
            Some(head) => head.forward(x),
            None => self.embed.head(x),
        }
        .cast(DType::F32)
    }
}

impl PipelineStage for HyperConnectedLm {
    fn stage(&self) -> Stage {
        let built = self.config.layers as u32;
        Stage {
            total_layers: built.saturating_add(self.config.mtp_layers),
            built: 0..built,
        }
    }
}

impl LoadWeights for HyperConnectedLm {
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

impl ProcessWeightsAfterLoading for HyperConnectedLm {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        none_missing(self)?;
        for (index, layer) in self.layers.iter().enumerate() {
            if let Some(expert) = layer.ffn.gate.unknown_expert() {
                return Err(SubstitutionError::model(format!(
                    "tensor `layers.{index}.ffn.gate.tid2eid` chooses expert {expert}, which the \
                     layer does not have"
                )));
            }
        }
        Ok(())
    }
}
