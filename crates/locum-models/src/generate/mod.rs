//! Text generation: prompt in, tokens out, one at a time.

mod sampler;

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tokenizers::Tokenizer;

pub use sampler::{Sampler, Sampling};

use crate::{Logits, Model, ModelError};

/// How a text is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate.
    pub max_new_tokens: usize,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Tokens that end the text; they are not part of it.
    pub end_tokens: Vec<u32>,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token was chosen.
    EndToken,
    /// As many tokens as were asked for.
    MaxNewTokens,
    /// The model's context is full.
    ContextLimit,
    /// The caller stopped.
    Stopped,
}

/// What was generated, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The new tokens, without an end token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The time for the prompt.
    pub prefill: Duration,
    /// The time for the tokens after the first.
    pub decode: Duration,
    /// How many steps that time holds.
    pub decode_steps: usize,
}

impl Generated {
    /// Tokens per second after the first, if there were any.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = self.decode.as_secs_f64();
        (self.decode_steps > 0 && seconds > 0.0).then(|| self.decode_steps as f64 / seconds)
    }
}

/// A model with its tokenizer.
pub struct Generator<'m> {
    model: &'m Model,
    tokenizer: &'m Tokenizer,
}

impl<'m> Generator<'m> {
    /// Joins a model with its tokenizer.
    #[must_use]
    pub fn new(model: &'m Model, tokenizer: &'m Tokenizer) -> Self {
        Self { model, tokenizer }
    }

    /// Tokens of a prompt, special tokens as the tokenizer adds them.
    ///
    /// # Errors
    ///
    /// An empty prompt, one that the model's context does not hold, or tokens that the model does
    /// not have.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, ModelError> {
        encode(self.tokenizer, self.model, prompt)
    }

    /// Continues a prompt; `text` gets the new text in whole characters, as soon as they are, and
    /// may stop it.
    ///
    /// # Errors
    ///
    /// As [`Generator::encode`]; options outside their range; logits that are not numbers.
    pub fn generate(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        mut text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated, ModelError> {
        let prompt = self.encode(prompt)?;
        let mut sampler = Sampler::new(options.sampling)?;
        let mut stream = self.tokenizer.decode_stream(true);
        let mut decode = |id: u32| {
            stream
                .step(id)
                .map_err(|error| ModelError::Tokenizer(error.to_string()))
        };
        // The prompt goes through the decoder, too: whether a token starts with a space, or ends a
        // character, depends on what is before it.
        for &id in &prompt {
            decode(id)?;
        }

        let room = self.model.limits().max_positions - prompt.len();
        let mut caches = [self.model.new_cache()];
        let mut tokens = Vec::new();
        let mut input: Vec<i64> = prompt.iter().copied().map(i64::from).collect();
        let start = Instant::now();
        let mut prefill = None;
        let finish = loop {
            if tokens.len() == options.max_new_tokens {
                break Finish::MaxNewTokens;
            }
            if tokens.len() == room {
                break Finish::ContextLimit;
            }
            let logits =
                self.model
                    .logits(&[std::mem::take(&mut input)], &mut caches, Logits::Last)?;
            let id = sampler.next(&logits).ok_or(ModelError::NanLogits {
                tokens: prompt.len() + tokens.len(),
            })?;
            prefill.get_or_insert_with(|| start.elapsed());
            if options.end_tokens.contains(&id) {
                break Finish::EndToken;
            }
            tokens.push(id);
            input.push(id.into());
            if let Some(new) = decode(id)?
                && text(&new).is_break()
            {
                break Finish::Stopped;
            }
        };
        let prefill = prefill.unwrap_or_default();
        let ended = usize::from(finish == Finish::EndToken);
        Ok(Generated {
            prompt,
            decode_steps: (tokens.len() + ended).saturating_sub(1),
            tokens,
            finish,
            prefill,
            decode: start.elapsed() - prefill,
        })
    }
}

/// Tokens of a prompt, checked against the model that they are for.
fn encode(tokenizer: &Tokenizer, model: &Model, prompt: &str) -> Result<Vec<u32>, ModelError> {
    if prompt.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    let encoding = tokenizer
        .encode(prompt, true)
        .map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    let ids = encoding.get_ids().to_vec();
    let limits = model.limits();
    if ids.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    if ids.len() > limits.max_positions {
        return Err(ModelError::TooLong {
            what: "the prompt",
            tokens: ids.len(),
            limit: limits.max_positions,
        });
    }
    match ids.iter().find(|&&id| id as usize >= limits.vocabulary) {
        Some(&id) => Err(ModelError::UnknownToken {
            id: id.into(),
            vocabulary: limits.vocabulary,
        }),
        None => Ok(ids),
    }
}
