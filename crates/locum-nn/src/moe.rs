//! A mixture-of-experts feed-forward: router, routed experts, and shared experts beside them.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Int, Tensor};
use eplb::{Geometry, LogicalExpert, MoeBlock};
use locum_macros::MoeLayers;

use crate::experts::{ExpertsConfig, RoutedExperts};
use crate::parameter::unloaded;
use crate::{ClampedMlp, ExpertObserver, GatedMlp, Linear, Mlp, Router, Routes, RoutingRule};

/// Routed experts, and in some families experts that every token goes to.
///
/// Families name the shared ones differently, and so do the fields here: a field that a family does
/// not have is `None`, and has no parameters. `S` is what DeepSeek's shared experts are.
#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct SparseMoe<S: Mlp = GatedMlp> {
    /// The router.
    pub gate: Router,
    /// The routed experts.
    #[substitution(layers)]
    pub experts: RoutedExperts,
    /// Qwen2-MoE's shared expert.
    pub shared_expert: Option<GatedMlp>,
    /// The gate of [`shared_expert`](Self::shared_expert), `[1, hidden]`.
    pub shared_expert_gate: Option<Linear>,
    /// DeepSeek's shared experts, as one feed-forward.
    pub shared_experts: Option<S>,
    /// A correction of the choice that the checkpoint keeps beside the router, `[experts]`.
    pub e_score_correction_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    rule: RoutingRule,
    /// How many experts every token goes to.
    #[module(skip)]
    shared: usize,
}

impl<S: Mlp> SparseMoe<S> {
    /// Routed experts alone, to be loaded.
    #[must_use]
    pub fn new(experts: ExpertsConfig, rule: RoutingRule, device: &Device) -> Self {
        Self {
            gate: Router::new(experts.hidden, experts.num_logical_experts as usize, device),
            experts: RoutedExperts::new(experts, device),
            shared_expert: None,
            shared_expert_gate: None,
            shared_experts: None,
            e_score_correction_bias: None,
            rule,
            shared: 0,
        }
    }

    /// The same with a correction of the choice within the router (DeepSeek-V3).
    #[must_use]
    pub fn with_router_correction(self, device: &Device) -> Self {
        Self {
            gate: self.gate.with_correction_bias(device),
            ..self
        }
    }

    /// The same with a correction of the choice within the router, at `gate.bias` (DeepSeek-V4).
    #[must_use]
    pub fn with_router_bias(self, device: &Device) -> Self {
        Self {
            gate: self.gate.with_bias(device),
            ..self
        }
    }

    /// The same with experts that are chosen by token (DeepSeek-V4's first layers).
    #[must_use]
    pub fn with_experts_by_token(self, vocabulary: usize, device: &Device) -> Self {
        Self {
            gate: self
                .gate
                .with_experts_by_token(vocabulary, self.rule.top_k, device),
            ..self
        }
    }

    /// The same with a correction of the choice beside the router (MiniMax-M2).
    #[must_use]
    pub fn with_correction(self, experts: usize, device: &Device) -> Self {
        Self {
            e_score_correction_bias: Some(unloaded([experts], device)),
            ..self
        }
    }

    /// Computes some tokens.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.forward_observed(x, None)
    }

    /// [`forward`](Self::forward), while somebody may look on.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward_observed(
        &self,
        x: Tensor<2>,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        let routes = match &self.e_score_correction_bias {
            Some(bias) => self
                .gate
                .forward_with_bias(x.clone(), &self.rule, Some(bias)),
            None => self.gate.forward(x.clone(), &self.rule),
        };
        self.forward_routes(x, &routes, observer)
    }

    /// Computes some tokens whose experts may be chosen by which tokens they are, while somebody may
    /// look on.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same; `ids` `[tokens]`.
    #[must_use]
    pub fn forward_tokens(
        &self,
        x: Tensor<2>,
        ids: &Tensor<1, Int>,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        let routes = self.gate.forward_tokens(x.clone(), ids, &self.rule);
        self.forward_routes(x, &routes, observer)
    }

    fn forward_routes(
        &self,
        x: Tensor<2>,
        routes: &Routes,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        let mut y = self.experts.forward_observed(x.clone(), routes, observer);
        if let Some(shared) = &self.shared_experts {
            y = y + shared.forward(x.clone());
        }
        if let (Some(shared), Some(gate)) = (&self.shared_expert, &self.shared_expert_gate) {
            y = y + shared.forward(x.clone()) * sigmoid(gate.forward(x));
        }
        y
    }
}

impl SparseMoe {
    /// The same with a shared expert of this size, weighted by a sigmoid gate (Qwen2-MoE).
    #[must_use]
    pub fn with_gated_shared_expert(
        self,
        hidden: usize,
        intermediate: usize,
        device: &Device,
    ) -> Self {
        Self {
            shared_expert: Some(GatedMlp::new(hidden, intermediate, device)),
            shared_expert_gate: Some(Linear::new(hidden, 1, device)),
            shared: 1,
            ..self
        }
    }

    /// The same with shared experts, each of this size, side by side in one feed-forward (DeepSeek).
    #[must_use]
    pub fn with_shared_experts(
        self,
        count: usize,
        hidden: usize,
        intermediate: usize,
        device: &Device,
    ) -> Self {
        Self {
            shared_experts: Some(GatedMlp::new(
                hidden,
                count.saturating_mul(intermediate),
                device,
            )),
            shared: count,
            ..self
        }
    }
}

impl SparseMoe<ClampedMlp> {
    /// The same with one shared expert, and the same limit for it and for the routed ones
    /// (DeepSeek-V4).
    #[must_use]
    pub fn clamped(self, hidden: usize, intermediate: usize, limit: f64, device: &Device) -> Self {
        Self {
            experts: self.experts.clamped(limit),
            shared_experts: Some(ClampedMlp::new(hidden, intermediate, limit, device)),
            shared: 1,
            ..self
        }
    }
}

/// What balancing over ranks sees: retained experts are what is placed, here all on one rank.
impl<S: Mlp> MoeBlock for SparseMoe<S> {
    type Experts = RoutedExperts;

    fn experts(&self) -> &RoutedExperts {
        &self.experts
    }

    fn geometry(&self) -> Geometry {
        let table = self.experts.table();
        let retained = table.retained().len();
        Geometry {
            routed: table.num_logical(),
            shared: self.shared,
            logical: table.num_logical(),
            retained,
            physical: retained,
            local_physical: retained,
            redundant: 0,
        }
    }

    fn retained_experts(&self) -> Option<Vec<LogicalExpert>> {
        let table = self.experts.table();
        let retained = || {
            table
                .retained()
                .iter()
                .copied()
                .map(LogicalExpert)
                .collect()
        };
        (!table.substituted().is_empty()).then(retained)
    }
}
