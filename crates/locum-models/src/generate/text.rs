//! Text of tokens, as they come.

use tokenizers::{
    DecodeStream, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer,
};

use crate::ModelError;

use super::stop::{Passed, StopText};

type Decoder<'t> = DecodeStream<
    't,
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// The new text of a sequence: whole characters, up to a stop string.
pub(super) struct TextStream<'t> {
    decoder: Decoder<'t>,
    stop: StopText<'t>,
    text: String,
}

impl<'t> TextStream<'t> {
    /// The text after a prompt.
    pub(super) fn after(
        prompt: &[u32],
        tokenizer: &'t Tokenizer,
        stop: &'t [String],
    ) -> Result<Self, ModelError> {
        let mut stream = Self {
            decoder: tokenizer.decode_stream(true),
            stop: StopText::new(stop)?,
            text: String::new(),
        };
        // The prompt goes through the decoder, too: whether a token starts with a space, or ends a
        // character, depends on what is before it.
        for &token in prompt {
            stream.decode(token)?;
        }
        Ok(stream)
    }

    fn decode(&mut self, token: u32) -> Result<Option<String>, ModelError> {
        self.decoder
            .step(token)
            .map_err(|error| ModelError::Tokenizer(error.to_string()))
    }

    /// Takes a token, and gives the text that is certain by now.
    pub(super) fn push(&mut self, token: u32) -> Result<Passed, ModelError> {
        let piece = self.decode(token)?.unwrap_or_default();
        let passed = self.stop.push(&piece);
        self.text.push_str(&passed.text);
        Ok(passed)
    }

    /// Gives what was held back when no more tokens come. The start of a character that no token
    /// completed is dropped.
    pub(super) fn finish(&mut self) -> Passed {
        let passed = self.stop.finish();
        self.text.push_str(&passed.text);
        passed
    }

    /// The text that was given so far.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}
