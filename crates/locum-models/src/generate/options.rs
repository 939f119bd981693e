//! How a text is generated, and the flag that stops it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ModelError;

use super::penalty::RepetitionPenalty;
use super::sampler::{Sampler, Sampling};
use super::stop::StopText;

/// How a text is generated.
///
/// ```
/// use locum_models::{GenerateOptions, Sampling};
///
/// let options = GenerateOptions {
///     max_new_tokens: 200,
///     sampling: Sampling::Random { temperature: 0.8, top_k: Some(40), top_p: None, seed: 7 },
///     repetition_penalty: 1.1,
///     stop: vec!["\n\n".into()],
///     ..GenerateOptions::default()
/// };
/// options.check()?;
/// # Ok::<(), locum_models::ModelError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// What the positive logits of tokens that are there already, in the prompt or in the new text,
    /// are divided by, and the negative ones multiplied; more than 0, and 1 leaves all as it is.
    pub repetition_penalty: f64,
    /// Tokens that end the text; they are not part of it.
    pub end_tokens: Vec<u32>,
    /// Texts that end the text where the first of them begins; they are not part of it.
    ///
    /// Special tokens are no text. One that is named here ends the text like an end token.
    pub stop: Vec<String>,
    /// Lets another thread end the text. A clone of these options is stopped by the same flag.
    pub cancellation: Cancellation,
}

impl Default for GenerateOptions {
    /// At most 64 tokens, the likeliest each time.
    fn default() -> Self {
        Self {
            max_new_tokens: 64,
            sampling: Sampling::Greedy,
            repetition_penalty: 1.0,
            end_tokens: Vec::new(),
            stop: Vec::new(),
            cancellation: Cancellation::default(),
        }
    }
}

impl GenerateOptions {
    /// Checks the options alone, so that they can be refused before a model is loaded.
    ///
    /// # Errors
    ///
    /// An option outside its range, or an empty stop string.
    pub fn check(&self) -> Result<(), ModelError> {
        Sampler::new(self.sampling)?;
        RepetitionPenalty::new(self.repetition_penalty)?;
        StopText::new(&self.stop)?;
        Ok(())
    }
}

/// A flag that ends generation from another thread. Clones share it.
///
/// It is looked at before every step: before each token, and during a long prompt before each piece
/// of it.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Ends what looks at this flag, once and for all.
    pub fn cancel(&self) {
        // Nothing else is handed over with the flag, so no ordering is needed.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`Cancellation::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
