//! A text as windows that are predicted on their own.

use crate::PruneError;

/// About how many tokens are computed at once.
const TOKENS_AT_ONCE: usize = 2048;

/// The most that the logits of one step take, in bytes, unless those of one token take more.
const LOGITS_AT_ONCE: usize = 256 << 20;

/// What is computed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Windows side by side.
    pub windows: usize,
    /// Tokens of each; fewer than the whole window where the logits of all would take too much memory.
    pub tokens: usize,
}

/// The tokens of a text as windows of `length` predictions, at a stride of `length`: window `i` reads
/// the tokens from `i·length` on and predicts the one after each. No context is carried from one window
/// to the next, and the last partial window is dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    ids: Vec<i64>,
    length: usize,
    steps: Option<Steps>,
}

impl Windows {
    /// Divides tokens, of which there are no special ones.
    ///
    /// # Errors
    ///
    /// A length of 0, or fewer than `length + 1` tokens.
    pub fn new(ids: Vec<i64>, length: usize) -> Result<Self, PruneError> {
        if length == 0 {
            return Err(PruneError::NoWindowLength);
        }
        if ids.len() <= length {
            return Err(PruneError::TextTooShort {
                tokens: ids.len(),
                length: length.saturating_add(1),
            });
        }
        Ok(Self {
            ids,
            length,
            steps: None,
        })
    }

    /// The same windows, of which so much is computed at once whatever the memory that logits take; at
    /// least one token is.
    #[must_use]
    pub fn with_steps(self, steps: Steps) -> Self {
        Self {
            steps: Some(steps),
            ..self
        }
    }

    /// How many whole windows there are: at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        (self.ids.len() - 1) / self.length
    }

    /// Predictions per window.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// All tokens.
    #[must_use]
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// How the windows are computed by a model with so many tokens in its vocabulary.
    #[must_use]
    pub fn steps(&self, vocabulary: usize) -> Steps {
        if let Some(steps) = self.steps {
            return Steps {
                windows: steps.windows.clamp(1, self.count()),
                tokens: steps.tokens.clamp(1, self.length),
            };
        }
        let at_once = (LOGITS_AT_ONCE / 4 / vocabulary.max(1)).clamp(1, TOKENS_AT_ONCE);
        Steps {
            windows: (at_once / self.length).clamp(1, self.count()),
            tokens: at_once.min(self.length),
        }
    }

    /// What a window reads, `[length]`.
    pub(super) fn inputs(&self, window: usize) -> &[i64] {
        &self.ids[window * self.length..][..self.length]
    }

    /// What a window predicts, `[length]`.
    pub(super) fn targets(&self, window: usize) -> &[i64] {
        &self.ids[window * self.length + 1..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::Windows;

    #[test]
    fn windows_are_at_a_stride_and_the_rest_is_dropped() -> Result<(), crate::PruneError> {
        let windows = Windows::new((0..12).collect(), 4)?;
        assert_eq!(windows.count(), 2);
        assert_eq!(windows.inputs(1), [4, 5, 6, 7]);
        assert_eq!(windows.targets(1), [5, 6, 7, 8]);
        assert_eq!(Windows::new((0..13).collect(), 4)?.count(), 3);
        Ok(())
    }

    #[test]
    fn logits_at_once_are_bounded() -> Result<(), crate::PruneError> {
        let of = |tokens, length, vocabulary| {
            let steps = Windows::new(vec![0; tokens], length)?.steps(vocabulary);
            Ok::<_, crate::PruneError>((steps.windows, steps.tokens))
        };
        assert_eq!(of(100_000, 256, 2048)?, (8, 256));
        assert_eq!(of(100_000, 4096, 131_072)?, (1, 512));
        assert_eq!(of(600, 256, 2048)?, (2, 256));
        Ok(())
    }

    #[test]
    fn text_must_fill_a_window() {
        for (tokens, length, expected) in [
            (4, 4, "has 4 tokens, fewer than one sequence of 5"),
            (4, 0, "window length is 0"),
        ] {
            let error = Windows::new(vec![0; tokens], length).map_err(|error| error.to_string());
            assert!(
                error.as_ref().is_err_and(|error| error.contains(expected)),
                "{error:?}"
            );
        }
    }
}
