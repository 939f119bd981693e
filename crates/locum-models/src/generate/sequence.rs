//! One sequence of a batch: what it has, and why it ends.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tokenizers::Tokenizer;

use crate::{Limits, ModelError};

use super::options::GenerateOptions;
use super::penalty::RepetitionPenalty;
use super::sampler::Sampler;
use super::stop::Passed;
use super::text::TextStream;

/// Tokens of a prompt that are computed in one step: the attention scores of a step take memory by
/// its tokens times all before them, and nothing can be cancelled within one.
const PROMPT_TOKENS_PER_STEP: usize = 512;

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token was chosen.
    EndToken,
    /// A stop string was complete.
    StopString,
    /// As many tokens as were asked for.
    MaxNewTokens,
    /// The model's context is full.
    ContextLimit,
    /// The callback said so.
    Stopped,
    /// The flag of the options said so.
    Cancelled,
}

/// What was generated, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// The new tokens, without an end token, but with those that a stop string was found in.
    pub tokens: Vec<u32>,
    /// The new text, without a stop string.
    pub text: String,
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

/// A sequence that is being generated.
pub(super) struct Sequence<'g> {
    /// The prompt's tokens, and the new ones after them.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// How many of the tokens the cache holds.
    computed: usize,
    max_positions: usize,
    options: &'g GenerateOptions,
    special_stops: Vec<u32>,
    penalty: RepetitionPenalty,
    sampler: Sampler,
    text: TextStream<'g>,
    prefill: Option<Duration>,
    finish: Option<Finish>,
}

impl<'g> Sequence<'g> {
    pub(super) fn new(
        prompt: Vec<u32>,
        options: &'g GenerateOptions,
        tokenizer: &'g Tokenizer,
        limits: Limits,
    ) -> Result<Self, ModelError> {
        let added = tokenizer.get_added_vocabulary();
        let special = options
            .stop
            .iter()
            .filter(|stop| added.is_special_token(stop));
        let mut penalty = RepetitionPenalty::new(options.repetition_penalty)?;
        penalty.see(prompt.iter().copied());
        Ok(Self {
            prompt_tokens: prompt.len(),
            computed: 0,
            max_positions: limits.max_positions,
            special_stops: special
                .filter_map(|stop| tokenizer.token_to_id(stop))
                .collect(),
            penalty,
            sampler: Sampler::new(options.sampling)?,
            text: TextStream::after(&prompt, tokenizer, &options.stop)?,
            tokens: prompt,
            options,
            prefill: None,
            finish: None,
        })
    }

    fn new_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_tokens
    }

    /// Whether the sequence has ended, or must before another step.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.finish.is_none() {
            self.finish = if self.new_tokens() >= self.options.max_new_tokens {
                Some(Finish::MaxNewTokens)
            } else if self.tokens.len() >= self.max_positions {
                Some(Finish::ContextLimit)
            } else if self.options.cancellation.is_cancelled() {
                Some(Finish::Cancelled)
            } else {
                None
            };
        }
        self.finish.is_some()
    }

    /// The tokens to compute next: some of the prompt, or the newest.
    pub(super) fn next_input(&mut self) -> Vec<i64> {
        let rest = &self.tokens[self.computed..];
        let next = &rest[..rest.len().min(PROMPT_TOKENS_PER_STEP)];
        self.computed += next.len();
        next.iter().map(|&token| token.into()).collect()
    }

    /// Chooses a token by the logits after the last of [`Sequence::next_input`].
    ///
    /// # Shapes
    ///
    /// `logits` `[vocabulary]`.
    pub(super) fn take(
        &mut self,
        logits: &mut [f32],
        start: Instant,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(), ModelError> {
        if self.computed < self.tokens.len() {
            // In the middle of a prompt there is nothing to choose.
            return Ok(());
        }
        self.penalty.apply(logits);
        let tokens = self.tokens.len();
        let token = self.sampler.next(logits);
        let token = token.ok_or(ModelError::NanLogits { tokens })?;
        self.prefill.get_or_insert_with(|| start.elapsed());
        if self.options.end_tokens.contains(&token) || self.special_stops.contains(&token) {
            self.finish = Some(Finish::EndToken);
            return Ok(());
        }
        self.tokens.push(token);
        self.penalty.see([token]);
        let passed = self.text.push(token)?;
        self.pass(&passed, on_text);
        Ok(())
    }

    fn pass(&mut self, passed: &Passed, mut on_text: impl FnMut(&str) -> ControlFlow<()>) {
        let stopped = !passed.text.is_empty() && on_text(&passed.text).is_break();
        if passed.stopped {
            self.finish = Some(Finish::StopString);
        } else if stopped {
            self.finish.get_or_insert(Finish::Stopped);
        }
    }

    /// Passes on what was held back, and gives what became of the sequence.
    pub(super) fn end(
        mut self,
        start: Instant,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Generated {
        // Who stopped it wants no more of it, and after a stop string there is no more.
        if !matches!(self.finish, Some(Finish::Stopped | Finish::StopString)) {
            let passed = self.text.finish();
            self.pass(&passed, on_text);
        }
        let prefill = self.prefill.unwrap_or_default();
        let steps = self.new_tokens() + usize::from(self.finish == Some(Finish::EndToken));
        let tokens = self.tokens.split_off(self.prompt_tokens);
        Generated {
            prompt: self.tokens,
            tokens,
            text: self.text.into_text(),
            finish: self.finish.unwrap_or(Finish::Stopped),
            prefill,
            decode: start.elapsed().saturating_sub(prefill),
            decode_steps: steps.saturating_sub(1),
        }
    }
}
