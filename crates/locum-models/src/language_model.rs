//! What text generation needs of an architecture.

use burn::tensor::{DType, Tensor};
use locum_nn::{ExpertObserver, KvCache};

/// The sizes that bound what can be asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Number of tokens.
    pub vocabulary: usize,
    /// The longest sequence, in tokens.
    pub max_positions: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Bytes that the cache takes per token.
    pub cache_bytes_per_token: usize,
    /// Bytes that the cache takes beside that, at most, however short the sequence.
    pub cache_bytes_per_sequence: usize,
}

/// Which positions' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// Those of every token.
    All,
    /// Those of each sequence's last token only.
    Last,
    /// None: only the experts are of interest, and the output head is left out.
    None,
}

/// A causal language model.
pub trait CausalLm: Send + Sync {
    /// What can be asked of it.
    fn limits(&self) -> Limits;

    /// Continues the sequence of each cache by some tokens, of which there may be a different number
    /// in each.
    ///
    /// # Shapes
    ///
    /// Gives `[all tokens, vocabulary]`, sequence after sequence, or `[sequences, vocabulary]` where
    /// the last tokens' are wanted, or `[0, vocabulary]` where none are; `f32`.
    fn forward(&self, ids: &[Vec<i64>], caches: &mut [KvCache], wanted: Logits) -> Tensor<2> {
        self.forward_observed(ids, caches, wanted, None)
    }

    /// [`forward`](Self::forward), while somebody may look on at the experts.
    ///
    /// # Shapes
    ///
    /// Those of [`forward`](Self::forward).
    fn forward_observed(
        &self,
        ids: &[Vec<i64>],
        caches: &mut [KvCache],
        wanted: Logits,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2>;

    /// The type that the model computes in.
    fn activations(&self) -> DType;

    /// An empty cache for one sequence.
    fn new_cache(&self) -> KvCache {
        KvCache::new(self.limits().layers)
    }
}
