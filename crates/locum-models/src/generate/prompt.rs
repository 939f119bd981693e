//! What is continued.

use tokenizers::Tokenizer;

use crate::{Limits, ModelError};

/// What is to be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt<'p> {
    /// A text; the tokenizer adds its special tokens.
    Text(&'p str),
    /// A text that a chat template made: special tokens are in it by name, and none are added.
    Formatted(&'p str),
    /// Token ids.
    Tokens(&'p [u32]),
}

impl<'p> From<&'p str> for Prompt<'p> {
    fn from(text: &'p str) -> Self {
        Self::Text(text)
    }
}

impl<'p> From<&'p String> for Prompt<'p> {
    fn from(text: &'p String) -> Self {
        Self::Text(text)
    }
}

impl<'p> From<&'p [u32]> for Prompt<'p> {
    fn from(tokens: &'p [u32]) -> Self {
        Self::Tokens(tokens)
    }
}

impl<'p> From<&'p Vec<u32>> for Prompt<'p> {
    fn from(tokens: &'p Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

/// Tokens of a prompt, checked against the model that they are for.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    limits: Limits,
    prompt: Prompt<'_>,
) -> Result<Vec<u32>, ModelError> {
    let (text, add_special_tokens) = match prompt {
        Prompt::Text(text) => (text, true),
        Prompt::Formatted(text) => (text, false),
        Prompt::Tokens(tokens) => return checked(tokens.to_vec(), limits),
    };
    if text.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    let encoding = tokenizer
        .encode(text, add_special_tokens)
        .map_err(|error| ModelError::Tokenizer(error.to_string()))?;
    checked(encoding.get_ids().to_vec(), limits)
}

fn checked(tokens: Vec<u32>, limits: Limits) -> Result<Vec<u32>, ModelError> {
    if tokens.is_empty() {
        return Err(ModelError::EmptyPrompt);
    }
    if tokens.len() > limits.max_positions {
        return Err(ModelError::TooLong {
            what: "the prompt",
            tokens: tokens.len(),
            limit: limits.max_positions,
        });
    }
    let unknown = tokens.iter().find(|&&id| id as usize >= limits.vocabulary);
    match unknown {
        Some(&id) => Err(ModelError::UnknownToken {
            id: id.into(),
            vocabulary: limits.vocabulary,
        }),
        None => Ok(tokens),
    }
}
