//! The choice of the next token.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ModelError;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// The most likely token; the lowest id among equals.
    Greedy,
    /// A draw from `softmax(logits / temperature)`, cut to the likeliest tokens.
    Random {
        /// What logits are divided by; more than 0.
        temperature: f64,
        /// Only that many of the likeliest tokens.
        top_k: Option<usize>,
        /// Only the likeliest tokens that together have this probability (arXiv 1904.09751,
        /// section 3.1); in (0, 1].
        top_p: Option<f64>,
        /// The same seed gives the same text, in any version and on any machine whose logits agree.
        seed: u64,
    },
}

/// Chooses tokens one after the other.
pub struct Sampler {
    sampling: Sampling,
    random: ChaCha8Rng,
}

impl Sampler {
    /// A sampler.
    ///
    /// # Errors
    ///
    /// [`ModelError::Sampling`] for an option outside its range.
    pub fn new(sampling: Sampling) -> Result<Self, ModelError> {
        let mut used_seed = 0;
        if let Sampling::Random {
            temperature,
            top_k,
            top_p,
            seed,
        } = sampling
        {
            used_seed = seed;
            let refuse = |option, value, range| {
                Err(ModelError::Sampling {
                    option,
                    value,
                    range,
                })
            };
            if !(temperature.is_finite() && temperature > 0.0) {
                return refuse("temperature", temperature, "a number above 0");
            }
            if top_k == Some(0) {
                return refuse("top-k", 0.0, "at least 1");
            }
            if let Some(p) = top_p
                && !(p > 0.0 && p <= 1.0)
            {
                return refuse("top-p", p, "above 0 and at most 1");
            }
        }
        Ok(Self {
            sampling,
            random: ChaCha8Rng::seed_from_u64(used_seed),
        })
    }

    /// The next token; `None` where a logit is NaN or none is finite.
    ///
    /// # Shapes
    ///
    /// `logits` `[vocabulary]`.
    pub fn next(&mut self, logits: &[f32]) -> Option<u32> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return None;
        }
        let best = (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a })?;
        if logits[best] == f32::NEG_INFINITY {
            return None;
        }
        let Sampling::Random {
            temperature,
            top_k,
            top_p,
            ..
        } = self.sampling
        else {
            return Some(best as u32);
        };
        let mut tokens: Vec<usize> = (0..logits.len()).collect();
        // Equal logits by id, so that the choice does not depend on how a sort treats ties.
        tokens.sort_unstable_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        tokens.truncate(top_k.unwrap_or(tokens.len()));
        let largest = f64::from(logits[best]);
        let mut weights: Vec<f64> = tokens
            .iter()
            .map(|&token| {
                let below = f64::from(logits[token]) - largest;
                // An infinite largest logit is below itself by NaN, but is the likeliest.
                if below.is_nan() {
                    1.0
                } else {
                    (below / temperature).exp()
                }
            })
            .collect();
        if let Some(p) = top_p {
            let wanted = p * weights.iter().sum::<f64>();
            let mut sum = 0.0;
            let kept = weights.iter().position(|weight| {
                sum += weight;
                sum >= wanted
            });
            weights.truncate(kept.map_or(weights.len(), |last| last + 1));
        }
        let mut draw = self.random.random::<f64>() * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|weight| {
            draw -= weight;
            draw < 0.0
        });
        Some(tokens[chosen.unwrap_or(weights.len() - 1)] as u32)
    }
}
