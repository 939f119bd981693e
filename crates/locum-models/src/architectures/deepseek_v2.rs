//! DeepSeek-V2 and DeepSeek-V2-Lite (arXiv 2405.04434), as in transformers' `modeling_deepseek_v2.py`.
//!
//! A softmax router that chooses among all experts, or among those of the best groups.

use burn::tensor::Device;
use locum_nn::{GroupScore, Groups, RotaryOrder, RoutingRule};
use serde_json::Value;

use super::deepseek::{DeepseekConfig, DeepseekLayer, Defaults};
use crate::config::Fields;
use crate::decoder::{DecoderConfig, DecoderLm, SubstitutedDecoderLm};
use crate::{ArchitectureConfig, ModelError};

/// Those of transformers' `DeepseekV2Config`.
const DEFAULTS: Defaults = Defaults {
    vocabulary: 102_400,
    hidden: 4096,
    layers: 32,
    heads: 32,
    max_positions: 2048,
    intermediate: 11_008,
    moe_intermediate: 1407,
    experts: ("num_experts", 64),
    chosen: None,
    shared: 2,
    dense: 0,
    mtp_layers: 0,
};

/// A DeepSeek-V2 language model.
pub type DeepseekV2 = DecoderLm<DeepseekLayer>;
/// A DeepSeek-V2 language model some of whose experts are constants.
pub type SubstitutedDeepseekV2 = SubstitutedDecoderLm<DeepseekLayer>;

/// The fields of a DeepSeek-V2 `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepseekV2Config(pub DeepseekConfig);

impl ArchitectureConfig for DeepseekV2Config {
    const MODEL_TYPE: &'static str = "deepseek_v2";
    const CLASS: &'static str = "DeepseekV2ForCausalLM";
    type Layer = DeepseekLayer;

    /// `norm_topk_prob` changes nothing, as in transformers: router weights are scaled, and never
    /// divided by their sum.
    fn from_json(config: &Value) -> Result<Self, ModelError> {
        const METHOD: &str = "topk_method";
        let fields = Fields::of_text_model(config)?;
        fields.only("scoring_func", &["softmax"])?;
        fields.only(METHOD, &["greedy", "group_limited_greedy"])?;
        let limited = fields.get(METHOD).and_then(Value::as_str) == Some("group_limited_greedy");
        let groups = if limited {
            Some(Groups {
                count: fields.size("n_group")?,
                chosen: fields.size("topk_group")?,
                score: GroupScore::Max,
            })
        } else {
            None
        };
        let scale = fields.number_or("routed_scaling_factor", 1.0)? as f32;
        let common = DeepseekConfig::read(&fields, &DEFAULTS, RotaryOrder::Interleaved, |top_k| {
            RoutingRule {
                scale,
                groups,
                ..RoutingRule::softmax(top_k, false)
            }
        })?;
        Ok(Self(common))
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
