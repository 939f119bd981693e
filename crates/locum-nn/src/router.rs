//! The router: which experts a token goes to, and with what weights.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Tensor};

use crate::experts::Routes;
use crate::linear::product;
use crate::parameter::unloaded;

/// How a router makes weights of its scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// How many experts a token goes to.
    pub top_k: usize,
    /// Whether the chosen experts' weights are divided by their sum (`norm_topk_prob`).
    pub normalize: bool,
}

/// Softmax over *all* experts, then the top k.
///
/// Its arithmetic is `f32` whatever the type of weights and activations: a rounded score changes
/// the choice of experts. Substitution leaves it alone: full size, logical ids, no renormalisation.
#[derive(Module, Debug)]
pub struct SoftmaxRouter {
    /// `[experts, hidden]`
    pub weight: Param<Tensor<2>>,
    #[module(skip)]
    scores: Scores,
}

impl SoftmaxRouter {
    /// A router, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, experts: usize, scores: Scores, device: &Device) -> Self {
        Self {
            weight: unloaded([experts, hidden], device),
            scores,
        }
    }

    /// Chooses.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]`; ids and weights are `[tokens, top_k]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>) -> Routes {
        let logits = product(x.cast(DType::F32), self.weight.val());
        let (weights, ids) = softmax(logits, 1).topk_with_indices(self.scores.top_k, 1);
        let weights = if self.scores.normalize {
            weights.clone() / weights.sum_dim(1)
        } else {
            weights
        };
        Routes { ids, weights }
    }
}
