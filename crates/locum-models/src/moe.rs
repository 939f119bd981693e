//! The mixture of experts of a family, as its configuration describes it.

use burn::tensor::Device;
use locum_nn::{ExpertNames, ExpertsConfig, RoutingRule, SparseMoe};
use locum_substitution::Dtype;

/// What the routed experts of a model are, layer by layer.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Experts of each layer; none where a layer is dense.
    pub experts: Vec<u32>,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// Routing.
    pub routing: RoutingRule,
    /// The type that the checkpoint declares, which constants are held in.
    pub dtype: Dtype,
}

impl MoeConfig {
    /// Experts of a layer.
    #[must_use]
    pub fn experts_of(&self, layer: usize) -> u32 {
        self.experts.get(layer).copied().unwrap_or(0)
    }

    /// Router and routed experts of a layer, to be loaded; `module` is where the layer has them.
    #[must_use]
    pub fn layer(
        &self,
        layer: usize,
        hidden: usize,
        module: &str,
        names: ExpertNames,
        device: &Device,
    ) -> SparseMoe {
        let experts = ExpertsConfig {
            layer: layer as u32,
            prefix: format!("model.layers.{layer}.{module}.experts"),
            num_logical_experts: self.experts_of(layer),
            hidden,
            intermediate: self.intermediate,
            names,
            constant_dtype: self.dtype.clone(),
        };
        SparseMoe::new(experts, self.routing, device)
    }
}
