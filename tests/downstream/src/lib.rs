//! A model of one's own that takes checkpoints with substituted experts.

use locum::burn::module::Module;
use locum::burn::tensor::Tensor;
use locum::nn::{self, Device, ExpertNames, ExpertsConfig, RmsNorm, RoutingRule, SparseMoe};
use locum::prelude::*;
// Burn's derive names its crate `burn`.
use locum::burn;

/// A stack of mixtures of experts. The attribute generates `SubstitutedMixtures` beside it.
#[expert_substitution]
#[derive(Module, Debug)]
pub struct Mixtures {
    #[substitution(layers)]
    layers: Vec<Block>,
    norm: RmsNorm,
}

/// A layer: its experts are at `layers.N.mlp.experts` of a checkpoint.
#[derive(Module, Debug, MoeLayers)]
pub struct Block {
    #[substitution(layers)]
    mlp: SparseMoe,
}

impl Mixtures {
    /// A model without weights: building one allocates none.
    pub fn new(layers: u32, device: &Device) -> Self {
        let block = |layer| {
            let experts = ExpertsConfig {
                layer,
                prefix: format!("model.layers.{layer}.mlp.experts"),
                num_logical_experts: 4,
                hidden: 2,
                intermediate: 3,
                names: ExpertNames::PROJ,
                constant_dtype: locum::substitution::Dtype::F32,
            };
            Block {
                mlp: SparseMoe::new(experts, RoutingRule::softmax(2, false), device),
            }
        };
        Self {
            layers: (0..layers).map(block).collect(),
            norm: RmsNorm::new(2, 0.0, device),
        }
    }

    /// `[tokens, 2]` to the same.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let layers = self.layers.iter();
        let x = layers.fold(x, |x, layer| x.clone() + layer.mlp.forward(x));
        self.norm.forward(x)
    }
}

impl PipelineStage for Mixtures {
    fn stage(&self) -> Stage {
        Stage::whole(self.layers.len() as u32)
    }
}

impl LoadWeights for Mixtures {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        let (model, loaded) = nn::load_parameters(self.clone(), weights, |_| None)?;
        *self = model;
        Ok(loaded)
    }
}

impl ProcessWeightsAfterLoading for Mixtures {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        nn::none_missing(self)
    }
}
