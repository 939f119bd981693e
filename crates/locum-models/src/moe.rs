//! The mixture of experts of a family, as its configuration describes it.

use burn::tensor::Device;
use locum_nn::{ExpertNames, ExpertsConfig, GroupScore, RoutingRule, SparseMoe};
use locum_substitution::Dtype;

use crate::ModelError;

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

    /// Checks that experts are in groups of one size, and that the chosen groups have enough of
    /// them.
    pub(crate) fn check_groups(&self) -> Result<(), ModelError> {
        let Some(groups) = self.routing.groups else {
            return Ok(());
        };
        let (count, chosen) = (groups.count, groups.chosen);
        if chosen > count {
            return Err(ModelError::field(
                "topk_group",
                format!("is {chosen}, but `n_group` is {count}"),
            ));
        }
        for (layer, &experts) in self.experts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let experts = experts as usize;
            let size = experts / count;
            let least = match groups.score {
                GroupScore::Max => 1,
                GroupScore::TopTwo => 2,
            };
            if !experts.is_multiple_of(count) || size < least {
                return Err(ModelError::field(
                    "n_group",
                    format!(
                        "is {count}, but layer {layer} has {experts} experts: groups must be of \
                         one size, at least {least}"
                    ),
                ));
            }
            if chosen * size < self.routing.top_k {
                return Err(ModelError::field(
                    "topk_group",
                    format!(
                        "{chosen} leaves {} experts to choose from in layer {layer}, but \
                         `num_experts_per_tok` is {}",
                        chosen * size,
                        self.routing.top_k
                    ),
                ));
            }
        }
        Ok(())
    }
}
