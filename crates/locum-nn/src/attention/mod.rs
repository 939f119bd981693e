//! Attention layers.

mod attend;
mod compressed;
mod compressor;
mod grouped_query;
mod indexer;
mod latent;

use std::ops::Range;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;

use crate::Step;

pub use attend::{AttentionShape, attend};
pub use compressed::{CompressedAttention, CompressedOptions, Compression};
pub use compressor::Compressor;
pub use grouped_query::{AttentionOptions, GroupedQueryAttention, HeadNorm};
pub use indexer::{IndexOptions, Indexer};
pub use latent::{LatentAttention, LatentOptions, LatentShape};

/// The self-attention of a decoder layer.
pub trait SelfAttention: Module + ModuleDisplay + Sync {
    /// Attends, as the model's layer number `layer`, to the step's tokens and those in the caches.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2>;
}

/// Some rows.
fn of<const D: usize>(x: &Tensor<D>, rows: &Range<usize>) -> Tensor<D> {
    x.clone().slice_dim(0, rows.clone())
}
