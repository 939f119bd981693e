//! DeepSeek-V3 (arXiv 2412.19437) and Moonlight, as in transformers' `modeling_deepseek_v3.py`.
//!
//! A sigmoid router: experts are chosen by corrected scores, among those of the best groups, and
//! weighted by their scores alone.

use burn::tensor::Device;
use locum_nn::{GroupScore, Groups, RotaryOrder, RoutingRule, Scoring};
use serde_json::Value;

use super::deepseek::{DeepseekConfig, DeepseekLayer, Defaults};
use crate::config::Fields;
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError};

/// Those of transformers' `DeepseekV3Config`.
const DEFAULTS: Defaults = Defaults {
    vocabulary: 129_280,
    hidden: 7168,
    layers: 61,
    heads: 128,
    max_positions: 4096,
    intermediate: 18_432,
    moe_intermediate: 2048,
    experts: ("num_local_experts", 256),
    chosen: Some(8),
    shared: 1,
    dense: 3,
    mtp_layers: 1,
};

/// A DeepSeek-V3 language model.
pub type DeepseekV3 = DecoderLm<DeepseekLayer>;
/// A DeepSeek-V3 language model some of whose experts are constants.
pub type SubstitutedDeepseekV3 = SubstitutedDecoderLm<DeepseekLayer>;

/// The fields of a DeepSeek-V3 `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepseekV3Config(pub DeepseekConfig);

impl ArchitectureConfig for DeepseekV3Config {
    const MODEL_TYPE: &'static str = "deepseek_v3";
    const CLASS: &'static str = "DeepseekV3ForCausalLM";
    type Layer = DeepseekLayer;

    fn from_json(config: &Value) -> Result<Self, ModelError> {
        let fields = Fields::of_text_model(config)?;
        fields.only("scoring_func", &["sigmoid"])?;
        fields.only("topk_method", &["noaux_tc"])?;
        let order = if fields.nullable_flag("rope_interleave", true)? {
            RotaryOrder::Interleaved
        } else {
            RotaryOrder::Halves
        };
        let groups = Groups {
            count: fields.size_or("n_group", 8)?,
            chosen: fields.size_or("topk_group", 4)?,
            score: GroupScore::TopTwo,
        };
        let normalize = fields.nullable_flag("norm_topk_prob", true)?;
        let scale = fields.number_or("routed_scaling_factor", 2.5)? as f32;
        let config = DeepseekConfig::read(&fields, &DEFAULTS, order, |top_k| RoutingRule {
            top_k,
            scoring: Scoring::Sigmoid,
            normalize,
            epsilon: 1e-20,
            scale,
            groups: Some(groups),
        })?;
        Ok(Self(DeepseekConfig {
            correction: true,
            ..config
        }))
    }

    fn decoder(&self) -> &DecoderConfig {
        &self.0.decoder
    }

    fn mtp_layers(&self) -> u32 {
        self.0.mtp_layers
    }

    fn layer(&self, layer: usize, device: &Device) -> DeepseekLayer {
        self.0.layer(layer, device)
    }
}
