//! The router: which experts a token goes to, and with what weights.

mod rule;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};

pub(crate) use rule::best_first;
pub use rule::{GroupScore, Groups, RoutingRule, Scoring};

use crate::experts::Routes;
use crate::extension;
use crate::linear::product;
use crate::parameter::{unloaded, unloaded_ids};

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
    /// The same, as DeepSeek-V4 names it.
    pub bias: Option<Param<Tensor<1>>>,
    /// The experts of each token of the vocabulary, `[vocabulary, top_k]`, where they are chosen by
    /// token and not by score (DeepSeek-V4's first layers).
    pub tid2eid: Option<Param<Tensor<2, Int>>>,
}

impl Router {
    /// A router, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, experts: usize, device: &Device) -> Self {
        Self {
            weight: unloaded([experts, hidden], device),
            e_score_correction_bias: None,
            bias: None,
            tid2eid: None,
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

    /// The same with a correction of the choice, at `….bias`.
    #[must_use]
    pub fn with_bias(self, device: &Device) -> Self {
        let experts = self.weight.lazy_shape()[0];
        Self {
            bias: Some(unloaded([experts], device)),
            ..self
        }
    }

    /// The same with experts that are chosen by token, from a table at `….tid2eid`.
    #[must_use]
    pub fn with_experts_by_token(self, vocabulary: usize, top_k: usize, device: &Device) -> Self {
        Self {
            tid2eid: Some(unloaded_ids([vocabulary, top_k], device)),
            ..self
        }
    }

    /// The first expert in the table of experts by token that there is not, if there is one.
    #[must_use]
    pub fn unknown_expert(&self) -> Option<i64> {
        let experts = self.weight.lazy_shape()[0];
        let table = self.tid2eid.as_ref()?.val().into_data();
        let mut chosen = table.iter::<i64>();
        chosen.find(|&expert| usize::try_from(expert).map_or(true, |e| e >= experts))
    }

    /// Chooses experts.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, hidden]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>, rule: &RoutingRule) -> Routes {
        let bias = self.e_score_correction_bias.as_ref().or(self.bias.as_ref());
        self.forward_with_bias(x, rule, bias)
    }

    /// Chooses experts by token where there is a table of them, by score where there is none.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, hidden]`, `ids` `[tokens]`.
    #[must_use]
    pub fn forward_tokens(&self, x: Tensor<2>, ids: &Tensor<1, Int>, rule: &RoutingRule) -> Routes {
        let Some(table) = &self.tid2eid else {
            return self.forward(x, rule);
        };
        let chosen: Vec<i64> = table
            .val()
            .select(0, ids.clone())
            .into_data()
            .iter::<i64>()
            .collect();
        let (logits, experts) = self.logits(x);
        rule.weigh(&logits, experts, chosen)
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
        let (logits, experts) = self.logits(x);
        let bias: Option<Vec<f32>> =
            bias.map(|bias| bias.val().into_data().iter::<f32>().collect());
        rule.route(&logits, experts, bias.as_deref())
    }

    /// The logits, row-major, and of how many experts they are.
    fn logits(&self, x: Tensor<2>) -> (Vec<f32>, usize) {
        let logits = product(extension::cast(x, DType::F32), self.weight.val());
        let experts = logits.dims()[1];
        (
            logits.into_data().try_into_vec().unwrap_or_default(),
            experts,
        )
    }
}
