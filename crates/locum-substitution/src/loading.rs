//! The two hooks of a model: taking a stream of weights, and what must hold afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::{NamedTensor, SubstitutionError, TensorInfo};

/// A stream of named tensors, as a checkpoint yields them.
pub type WeightStream<'a> = dyn Iterator<Item = Result<NamedTensor, SubstitutionError>> + 'a;

/// A model that takes its weights from a stream.
#[diagnostic::on_unimplemented(
    message = "`{Self}` takes no weights",
    label = "a model with substituted experts needs `LoadWeights`",
    note = "implement `LoadWeights` for `{Self}`: it gets every tensor but the constants"
)]
pub trait LoadWeights {
    /// Takes weights, and says what it loaded and what it passed over.
    ///
    /// The stream may come in any order, and a model's weights in several calls.
    ///
    /// # Errors
    ///
    /// A tensor that does not fit, one that nobody takes and no rule skips, or an error of the
    /// stream.
    fn load_weights(&mut self, weights: &mut WeightStream<'_>)
    -> Result<Loaded, SubstitutionError>;

    /// Checks, by name, type and shape alone, whether [`load_weights`](Self::load_weights) would
    /// take these tensors as a whole checkpoint: nothing is read.
    ///
    /// A loader that does not know beforehand accepts everything, which is the default.
    ///
    /// # Errors
    ///
    /// What loading would fail with.
    fn check_weights(
        &self,
        tensors: &mut dyn Iterator<Item = TensorInfo>,
    ) -> Result<(), SubstitutionError> {
        let _ = tensors;
        Ok(())
    }
}

/// A model that has something to check, or to prepare, once its weights are there.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no hook for when its weights are there",
    label = "a model with substituted experts needs `ProcessWeightsAfterLoading`",
    note = "implement `ProcessWeightsAfterLoading` for `{Self}`; a model with nothing to check returns `Ok(())`"
)]
pub trait ProcessWeightsAfterLoading {
    /// Called once after the last [`load_weights`](LoadWeights::load_weights).
    ///
    /// # Errors
    ///
    /// Weights that are missing.
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError>;
}

/// What one call of [`load_weights`](LoadWeights::load_weights) did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The paths of the parameters that were loaded; `None` where the loader does not say.
    pub parameters: Option<BTreeSet<String>>,
    /// Tensors that a rule passed over, by rule.
    pub skipped: BTreeMap<SkipRule, usize>,
}

impl Loaded {
    /// Counts a tensor as passed over.
    pub fn skip(&mut self, rule: SkipRule) {
        *self.skipped.entry(rule).or_default() += 1;
    }
}

/// Why a tensor that nobody takes is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SkipRule {
    /// Weights of an expert that is substituted: left in the checkpoint, never read.
    SubstitutedExpert,
    /// A tensor of a decoder layer that another pipeline stage builds.
    LayerOfAnotherStage,
    /// A tensor of multi-token prediction, beyond the last decoder layer.
    MultiTokenPrediction,
    /// A buffer that follows from the configuration, such as `rotary_emb.inv_freq`.
    RotaryBuffer,
    /// An output head beside tied embeddings.
    TiedHead,
    /// What came after the model's own loader stopped reading.
    Unread,
}

impl fmt::Display for SkipRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SubstitutedExpert => "weights of substituted experts",
            Self::LayerOfAnotherStage => "layers of another stage",
            Self::MultiTokenPrediction => "multi-token prediction",
            Self::RotaryBuffer => "rotary buffers",
            Self::TiedHead => "head of tied embeddings",
            Self::Unread => "unread by the model's loader",
        })
    }
}
