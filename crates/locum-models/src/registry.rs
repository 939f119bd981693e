//! The architectures that can be built, and how a `config.json` names them.

use burn::tensor::{DType, Device};
use locum_substitution::{MoeLayerInfo, RouteTable, SubstitutionSpec};
use serde_json::Value;

use crate::ModelError;
use crate::architectures::deepseek_v2::DeepseekV2Config;
use crate::architectures::deepseek_v3::DeepseekV3Config;
use crate::architectures::deepseek_v4::DeepseekV4Config;
use crate::architectures::minimax_m2::MiniMaxM2Config;
use crate::architectures::mixtral::MixtralConfig;
use crate::architectures::olmoe::OlmoeConfig;
use crate::architectures::qwen2_moe::Qwen2MoeConfig;
use crate::architectures::qwen3_moe::Qwen3MoeConfig;
use crate::config::{FieldLog, logged};
use crate::decoder::{DecoderConfig, DecoderLayer, DecoderLm, SubstitutedDecoderLm};
use crate::model::SubstitutedModel;

/// An architecture.
pub struct Architecture {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Its name in `architectures`.
    pub class: &'static str,
    build: fn(&Value, &SubstitutionSpec, DType, &Device) -> Result<Built, ModelError>,
    read: fn(&Value) -> Result<(), ModelError>,
}

/// A model without weights.
pub(crate) struct Built {
    pub(crate) model: Box<dyn SubstitutedModel>,
    pub(crate) moe_layers: Vec<(MoeLayerInfo, RouteTable)>,
}

/// Every architecture, one line each.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture::of::<OlmoeConfig>(),
    Architecture::of::<Qwen2MoeConfig>(),
    Architecture::of::<Qwen3MoeConfig>(),
    Architecture::of::<MixtralConfig>(),
    Architecture::of::<MiniMaxM2Config>(),
    Architecture::of::<DeepseekV2Config>(),
    Architecture::of::<DeepseekV3Config>(),
    Architecture::of::<DeepseekV4Config>(),
];

/// What the registry must know of an architecture, whatever its model type.
pub(crate) trait Family: Sized {
    /// Its `model_type`.
    const MODEL_TYPE: &'static str;
    /// Its name in `architectures`.
    const CLASS: &'static str;

    /// Reads a `config.json`.
    fn read(config: &Value) -> Result<Self, ModelError>;

    /// The wrapped model, without weights.
    fn substituted(
        &self,
        spec: &SubstitutionSpec,
        activations: DType,
        device: &Device,
    ) -> Result<Built, ModelError>;
}

impl<C: ArchitectureConfig> Family for C {
    const MODEL_TYPE: &'static str = C::MODEL_TYPE;
    const CLASS: &'static str = C::CLASS;

    fn read(config: &Value) -> Result<Self, ModelError> {
        Self::from_json(config)
    }

    fn substituted(
        &self,
        spec: &SubstitutionSpec,
        activations: DType,
        device: &Device,
    ) -> Result<Built, ModelError> {
        let model = SubstitutedDecoderLm::try_new(self.build(activations, device), spec)?;
        let moe_layers = model.core().moe_layers();
        Ok(Built {
            moe_layers: moe_layers.map(|(i, t)| (i.clone(), t.clone())).collect(),
            model: Box::new(model),
        })
    }
}

/// The configuration of an architecture whose model is a [`DecoderLm`]: what a file in
/// [`architectures`](crate::architectures) says of it.
pub trait ArchitectureConfig: Sized {
    /// Its `model_type`.
    const MODEL_TYPE: &'static str;
    /// Its name in `architectures`.
    const CLASS: &'static str;
    /// Its decoder layers.
    type Layer: DecoderLayer + 'static;

    /// Reads a `config.json`; absent fields have the defaults of the family's configuration class
    /// in transformers.
    ///
    /// # Errors
    ///
    /// A field that is unusable, or one that would change the result and is not supported.
    fn from_json(config: &Value) -> Result<Self, ModelError>;

    /// What all decoders have.
    fn decoder(&self) -> &DecoderConfig;

    /// Layers of multi-token prediction that a checkpoint has after the decoder's. They are not built.
    fn mtp_layers(&self) -> u32 {
        0
    }

    /// A layer, to be loaded.
    fn layer(&self, layer: usize, device: &Device) -> Self::Layer;

    /// A model without weights, which computes in `activations`.
    #[must_use]
    fn build(&self, activations: DType, device: &Device) -> DecoderLm<Self::Layer> {
        DecoderLm::new(self.decoder(), activations, device, |layer| {
            self.layer(layer, device)
        })
        .with_mtp_layers(self.mtp_layers())
    }
}

impl Architecture {
    const fn of<F: Family>() -> Self {
        Self {
            model_type: F::MODEL_TYPE,
            class: F::CLASS,
            build: |config, spec, activations, device| {
                F::read(config)?.substituted(spec, activations, device)
            },
            read: |config| F::read(config).map(drop),
        }
    }

    /// The architecture that a `config.json` names.
    ///
    /// Checkpoints pruned by the MoNE authors' code carry names of their own, which mean the same
    /// architecture: `olmoe_compressed`, `OlmoneForCausalLM`.
    ///
    /// # Errors
    ///
    /// [`ModelError::UnsupportedArchitecture`], which lists the supported ones.
    pub fn of_config(config: &Value) -> Result<&'static Self, ModelError> {
        let places = [config.get("text_config"), Some(config)];
        let model_types: Vec<&Value> = places
            .into_iter()
            .flatten()
            .filter_map(|place| place.get("model_type"))
            .filter(|model_type| !model_type.is_null())
            .collect();
        for model_type in model_types.iter().filter_map(|found| found.as_str()) {
            let model_type = model_type.strip_suffix("_compressed").unwrap_or(model_type);
            let model_type = model_type.replace("olmone", "olmoe");
            if let Some(found) = ARCHITECTURES.iter().find(|a| a.model_type == model_type) {
                return Ok(found);
            }
        }
        // The class decides only where nothing else does: a `model_type` says what the weights are.
        let classes = config
            .get("architectures")
            .filter(|_| model_types.is_empty())
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        for class in classes {
            let class = class.replace("Olmone", "Olmoe").replace("Compressed", "");
            if let Some(found) = ARCHITECTURES.iter().find(|a| a.class == class) {
                return Ok(found);
            }
        }
        Err(ModelError::UnsupportedArchitecture {
            found: model_types
                .last()
                .map_or_else(|| "(none)".into(), ToString::to_string),
            supported: ARCHITECTURES
                .iter()
                .map(|a| a.model_type)
                .collect::<Vec<_>>()
                .join(", "),
        })
    }

    /// The fields of a `config.json` that the architecture asks for: what it uses, and what it
    /// refuses. Which ones may depend on the values of others; a config that is refused is read as
    /// far as that.
    #[must_use]
    pub fn fields(&self, config: &Value) -> FieldLog {
        logged(|| {
            let _ = (self.read)(config);
        })
    }

    pub(crate) fn build(
        &self,
        config: &Value,
        spec: &SubstitutionSpec,
        activations: DType,
        device: &Device,
    ) -> Result<Built, ModelError> {
        (self.build)(config, spec, activations, device)
    }
}
