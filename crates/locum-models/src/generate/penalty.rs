//! Less of what is there already.

use std::collections::BTreeSet;

use crate::ModelError;

/// Makes tokens less likely that are in the prompt or in the new text (arXiv 1909.05858,
/// section 4.1; as transformers' `RepetitionPenaltyLogitsProcessor` does it).
///
/// The logit `l` of such a token becomes `l / penalty` where it is positive, `l · penalty` where it
/// is negative, however often the token is there.
#[derive(Clone, Debug)]
pub struct RepetitionPenalty {
    penalty: f32,
    seen: BTreeSet<u32>,
}

impl RepetitionPenalty {
    /// A penalty; 1 is none, less than 1 favours repetition.
    ///
    /// # Errors
    ///
    /// [`ModelError::Sampling`] for what is not a number above 0.
    pub fn new(penalty: f64) -> Result<Self, ModelError> {
        // Logits are f32, and so is the arithmetic: what rounds to 0 or to infinity there is refused.
        let rounded = penalty as f32;
        if !(rounded.is_finite() && rounded > 0.0) {
            return Err(ModelError::Sampling {
                option: "repetition-penalty",
                value: penalty,
                range: "a number above 0",
            });
        }
        Ok(Self {
            penalty: rounded,
            seen: BTreeSet::new(),
        })
    }

    /// Remembers tokens.
    pub fn see(&mut self, tokens: impl IntoIterator<Item = u32>) {
        self.seen.extend(tokens);
    }

    /// Applies the penalty for the tokens that were seen.
    ///
    /// # Shapes
    ///
    /// `logits` `[vocabulary]`; tokens beyond it are passed over.
    pub fn apply(&self, logits: &mut [f32]) {
        if self.penalty == 1.0 {
            return;
        }
        for &token in &self.seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                if *logit < 0.0 {
                    *logit *= self.penalty;
                } else {
                    *logit /= self.penalty;
                }
            }
        }
    }
}
