//! Attention layers.

mod attend;
mod grouped_query;
mod latent;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;

use crate::Step;

pub use attend::{AttentionShape, attend};
pub use grouped_query::{AttentionOptions, GroupedQueryAttention, HeadNorm};
pub use latent::{LatentAttention, LatentOptions, LatentShape};

/// The self-attention of a decoder layer.
pub trait SelfAttention: Module + ModuleDisplay {
    /// Attends, as the model's layer number `layer`, to the step's tokens and those in the caches.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2>;
}
