//! The router: which experts a token goes to, and with what weights.

mod rule;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

pub use rule::{GroupScore, Groups, RoutingRule, Scoring};

use crate::experts::Routes;
use crate::linear::product;
use crate::parameter::unloaded;

/// A linear router.
///
/// Its arithmetic is `f32` whatever the type of weights and activations: a rounded score changes
/// the choice of experts. Substitution leaves it alone: full size, logical ids, no renormalisation.
#[derive(Module, Debug)]
pub struct Router {
    /// `[experts, hidden]`
    pub weight: Param<Tensor<2>>,
    /// `[experts]`, added to scores for the choice of experts only.
    pub e_score_correction_bias: Option<Param<Tensor<1>>>,
}

impl Router {
    /// A router, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, experts: usize, device: &Device) -> Self {
        Self {
            weight: unloaded([experts, hidden], device),
            e_score_correction_bias: None,
        }
    }

    /// The same with a correction of the choice, at `….e_score_correction_bias`.
    #[must_use]
    pub fn with_correction_bias(self, device: &Device) -> Self {
        let experts = self.weight.lazy_shape()[0];
        Self {
            e_score_correction_bias: Some(unloaded([experts], device)),
            ..self
        }
    }

    /// Chooses experts.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, hidden]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>, rule: &RoutingRule) -> Routes {
        self.forward_with_bias(x, rule, self.e_score_correction_bias.as_ref())
    }

    /// Chooses experts with a correction that the checkpoint keeps outside the router.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, hidden]`, `bias` `[experts]`.
    #[must_use]
    pub fn forward_with_bias(
        &self,
        x: Tensor<2>,
        rule: &RoutingRule,
        bias: Option<&Param<Tensor<1>>>,
    ) -> Routes {
        let logits = product(x.cast(DType::F32), self.weight.val());
        let experts = logits.dims()[1];
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        let bias: Option<Vec<f32>> =
            bias.map(|bias| bias.val().into_data().iter::<f32>().collect());
        rule.route(&logits, experts, bias.as_deref())
    }
}
