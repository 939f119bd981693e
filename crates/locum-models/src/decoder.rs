//! What the architectures share: a pre-norm decoder, its hooks, and its weights' names.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::{DType, Device, Tensor, TensorData};
use locum_macros::{MoeLayers, expert_substitution};
use locum_nn::{
    Embedding, ExpertObserver, KvCache, Linear, RmsNorm, RotaryConfig, Step, check_parameters,
    load_parameters, none_missing,
};
use locum_substitution::name::LayerName;
use locum_substitution::{
    LoadWeights, Loaded, MoeLayers, PipelineStage, ProcessWeightsAfterLoading, SkipRule, Stage,
    SubstitutionError, TensorInfo, WeightStream,
};

use crate::language_model::{CausalLm, Limits, Logits};

/// What a decoder is, whatever its layers are.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Number of tokens.
    pub vocabulary: usize,
    /// The size of a token.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// The longest sequence.
    pub max_positions: usize,
    /// ε of the last normalisation.
    pub epsilon: f64,
    /// Whether the output head is the embedding.
    pub tied: bool,
    /// Positions.
    pub rotary: RotaryConfig,
    /// Elements that the cache holds per token and layer.
    pub cached_elements: usize,
}

/// A decoder layer of an architecture.
pub trait DecoderLayer: Module + ModuleDisplay + MoeLayers + Sync {
    /// Computes the tokens of a step, as the model's layer number `layer`.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2>;
}

/// A causal language model of layers `L`; parameter paths are tensor names.
#[expert_substitution(name = SubstitutedDecoderLm, crate = locum_substitution)]
#[derive(Module, Debug)]
pub struct DecoderLm<L: DecoderLayer> {
    #[substitution(layers)]
    model: Decoder<L>,
    lm_head: Option<Linear>,
    #[module(skip)]
    config: DecoderConfig,
    #[module(skip)]
    activations: DType,
    #[module(skip)]
    mtp_layers: u32,
}

#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Decoder<L: DecoderLayer> {
    embed_tokens: Embedding,
    #[substitution(layers)]
    layers: Vec<L>,
    norm: RmsNorm,
}

impl<L: DecoderLayer> DecoderLm<L> {
    /// A model without weights, which computes in `activations`.
    #[must_use]
    pub fn new(
        config: &DecoderConfig,
        activations: DType,
        device: &Device,
        layer: impl FnMut(usize) -> L,
    ) -> Self {
        Self {
            model: Decoder {
                embed_tokens: Embedding::new(config.vocabulary, config.hidden, device),
                layers: (0..config.layers).map(layer).collect(),
                norm: RmsNorm::new(config.hidden, config.epsilon, device),
            },
            lm_head: (!config.tied).then(|| Linear::new(config.hidden, config.vocabulary, device)),
            config: config.clone(),
            activations,
            mtp_layers: 0,
        }
    }

    /// The same model of a checkpoint that has layers of multi-token prediction (MTP) after these:
    /// they are not built, and their tensors are skipped.
    #[must_use]
    pub fn with_mtp_layers(self, layers: u32) -> Self {
        Self {
            mtp_layers: layers,
            ..self
        }
    }

    /// The decoder layers.
    #[must_use]
    pub fn layers(&self) -> &[L] {
        &self.model.layers
    }

    /// Why a tensor that fits nowhere may be passed over.
    fn skip_rule(&self, name: &str) -> Option<SkipRule> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some(SkipRule::RotaryBuffer);
        }
        if self.config.tied && name == "lm_head.weight" {
            return Some(SkipRule::TiedHead);
        }
        if self.mtp_layers > 0 && (name.starts_with("mtp.") || name.starts_with("model.mtp.")) {
            return Some(SkipRule::MultiTokenPrediction);
        }
        let layers = self.config.layers as u32;
        let mtp = layers..layers.saturating_add(self.mtp_layers);
        LayerName::parse(name)
            .filter(|name| mtp.contains(&name.layer))
            .map(|_| SkipRule::MultiTokenPrediction)
    }
}

impl<L: DecoderLayer> CausalLm for DecoderLm<L> {
    fn limits(&self) -> Limits {
        Limits {
            vocabulary: self.config.vocabulary,
            max_positions: self.config.max_positions,
            layers: self.config.layers,
            cache_bytes_per_token: self.config.layers
                * self.config.cached_elements
                * self.activations.size(),
            cache_bytes_per_sequence: 0,
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
        let device = self.model.embed_tokens.weight.lazy_device();
        let lengths: Vec<usize> = ids.iter().map(Vec::len).collect();
        let mut step = Step::new(&lengths, caches, &self.config.rotary, &device).observed(observer);
        let ids = ids.concat();
        let tokens = ids.len();
        let ids = Tensor::from_data(TensorData::new(ids, [tokens]), &device);
        let mut x = self.model.embed_tokens.forward(ids, self.activations);
        for (index, layer) in self.model.layers.iter().enumerate() {
            x = layer.forward(x, index, &mut step);
        }
        let x = match wanted {
            Logits::All => x,
            Logits::None => {
                step.finish();
                return Tensor::zeros([0, self.config.vocabulary], (&device, DType::F32));
            }
            Logits::Last => {
                let last: Vec<i64> = step.last_tokens().map(|token| token as i64).collect();
                let sequences = last.len();
                x.select(
                    0,
                    Tensor::from_data(TensorData::new(last, [sequences]), &device),
                )
            }
        };
        step.finish();
        let x = self.model.norm.forward(x);
        match &self.lm_head {
            Some(head) => head.forward(x),
            None => self.model.embed_tokens.head(x),
        }
        .cast(DType::F32)
    }
}

impl<L: DecoderLayer> PipelineStage for DecoderLm<L> {
    fn stage(&self) -> Stage {
        let built = self.config.layers as u32;
        Stage {
            total_layers: built.saturating_add(self.mtp_layers),
            built: 0..built,
        }
    }
}

impl<L: DecoderLayer> LoadWeights for DecoderLm<L> {
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

impl<L: DecoderLayer> ProcessWeightsAfterLoading for DecoderLm<L> {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        none_missing(self)
    }
}
