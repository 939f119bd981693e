//! Text generation: prompts in, tokens out, one at a time for each.
//!
//! One loop serves one prompt and many: a [`Sequence`] knows what is next of its own and why it
//! ends, the loop computes what is next of all sequences in one step, and drops those that ended.

mod chat;
mod options;
mod penalty;
mod prompt;
mod sampler;
mod sequence;
mod stop;
mod text;

use std::ops::ControlFlow;
use std::time::Instant;

use tokenizers::Tokenizer;

pub use chat::{Chat, ChatTemplate, Message};
pub use options::{Cancellation, GenerateOptions};
pub use penalty::RepetitionPenalty;
pub use prompt::Prompt;
pub use sampler::{Sampler, Sampling};
pub use sequence::{Finish, Generated};

use crate::{Logits, Model, ModelError};
use sequence::Sequence;

/// A prompt of a batch, and how it is continued.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// What is continued.
    pub prompt: Prompt<'r>,
    /// How.
    pub options: &'r GenerateOptions,
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

    /// Tokens of a prompt; [`Prompt`] says who adds special tokens.
    ///
    /// # Errors
    ///
    /// An empty prompt, one that the model's context does not hold, or tokens that the model does
    /// not have.
    pub fn encode<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Vec<u32>, ModelError> {
        prompt::encode(self.tokenizer, self.model.limits(), prompt.into())
    }

    /// Continues a prompt; `text` gets the new text in whole characters, as soon as they are and no
    /// stop string can begin with them, and may end it.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// # use locum_models::{GenerateOptions, Generator, Model, ModelError};
    /// # use tokenizers::Tokenizer;
    ///
    /// # fn example(model: &Model, tokenizer: &Tokenizer) -> Result<(), ModelError> {
    /// let options = GenerateOptions {
    ///     stop: vec!["\n\n".into()],
    ///     ..GenerateOptions::default()
    /// };
    /// let generated = Generator::new(model, tokenizer).generate("Alice", &options, |text| {
    ///     print!("{text}");
    ///     ControlFlow::Continue(())
    /// })?;
    /// println!("\n{:?} after {} tokens", generated.finish, generated.tokens.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Generator::encode`]; options outside their range; logits that are not numbers.
    pub fn generate<'p>(
        &self,
        prompt: impl Into<Prompt<'p>>,
        options: &GenerateOptions,
        mut text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generated, ModelError> {
        let request = Request {
            prompt: prompt.into(),
            options,
        };
        let generated = self.generate_batch(&[request], |_, new| text(new));
        let mut generated = generated.map_err(|error| match error {
            // There is one: which it is goes without saying.
            ModelError::InRequest { source, .. } => *source,
            other => other,
        })?;
        // As many come out as went in.
        generated.pop().ok_or(ModelError::EmptyPrompt)
    }

    /// Continues several prompts side by side: each step computes one more token of each that has
    /// not ended. `text` gets a sequence's place among the requests and its new text, and may end
    /// that sequence; to end all, share a [`Cancellation`] between their options.
    ///
    /// Prompts need not be of the same length, and each sequence draws by its own seed from its own
    /// generator, so that it gets the tokens that it would get alone, in a batch of any company.
    /// (On devices without kernels, and with DeepSeek-V4, computing more rows at once may round a
    /// logit differently in its last bits.) Two requests with the same prompt and the same seed give the
    /// same text.
    ///
    /// All requests are in memory at once, each with a cache for its tokens.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// # use locum_models::{GenerateOptions, Generator, Model, ModelError, Request};
    /// # use tokenizers::Tokenizer;
    ///
    /// # fn example(model: &Model, tokenizer: &Tokenizer) -> Result<(), ModelError> {
    /// let options = GenerateOptions::default();
    /// let requests = ["Alice", "The Lord said unto"].map(|prompt| Request {
    ///     prompt: prompt.into(),
    ///     options: &options,
    /// });
    /// let generated = Generator::new(model, tokenizer)
    ///     .generate_batch(&requests, |_, _| ControlFlow::Continue(()))?;
    /// for (request, generated) in requests.iter().zip(generated) {
    ///     println!("{:?}: {}", request.prompt, generated.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Generator::generate`], with the place of the request ([`ModelError::InRequest`]). All
    /// requests are checked before anything is computed.
    pub fn generate_batch(
        &self,
        requests: &[Request<'_>],
        mut text: impl FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        let limits = self.model.limits();
        let sequences = requests.iter().enumerate().map(|(index, request)| {
            prompt::encode(self.tokenizer, limits, request.prompt)
                .and_then(|tokens| Sequence::new(tokens, request.options, self.tokenizer, limits))
                .map_err(|error| error.in_request(index))
        });
        self.run(sequences.collect::<Result<_, _>>()?, &mut text)
    }

    /// Runs sequences until all have ended; gives them in their order.
    fn run(
        &self,
        sequences: Vec<Sequence<'_>>,
        text: &mut dyn FnMut(usize, &str) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, ModelError> {
        let vocabulary = self.model.limits().vocabulary;
        let mut caches = vec![self.model.new_cache(); sequences.len()];
        let mut running: Vec<_> = sequences.into_iter().enumerate().collect();
        let mut ended = Vec::with_capacity(running.len());
        let start = Instant::now();
        loop {
            let mut place = 0;
            while let Some((_, sequence)) = running.get_mut(place) {
                if sequence.has_ended() {
                    caches.remove(place);
                    let (index, sequence) = running.remove(place);
                    ended.push((index, sequence.end(start, |new| text(index, new))));
                } else {
                    place += 1;
                }
            }
            if running.is_empty() {
                break;
            }
            let inputs: Vec<_> = running.iter_mut().map(|(_, s)| s.next_input()).collect();
            let mut logits = self.model.logits(&inputs, &mut caches, Logits::Last)?;
            for ((index, sequence), logits) in running.iter_mut().zip(logits.chunks_mut(vocabulary))
            {
                sequence
                    .take(logits, start, |new| text(*index, new))
                    .map_err(|error| error.in_request(*index))?;
            }
        }
        ended.sort_by_key(|(index, _)| *index);
        Ok(ended.into_iter().map(|(_, generated)| generated).collect())
    }
}
