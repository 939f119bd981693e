//! What can be wrong with a model, its files, or what is asked of it.

use std::path::PathBuf;

use locum_checkpoint::CheckpointError;
use locum_substitution::SubstitutionError;

/// What went wrong; the message names the file, the field, the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The checkpoint's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),

    /// The declaration of substituted experts, or the weights.
    #[error(transparent)]
    Substitution(#[from] SubstitutionError),

    /// Something that is wrong with a file.
    #[error("{}: {source}", file.display())]
    InFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        source: Box<ModelError>,
    },

    /// A model directory that is not there.
    #[error("no such directory: {} (models are not downloaded: give a local one)", .0.display())]
    NoDirectory(PathBuf),

    /// A file in place of a model directory.
    #[error("{} is not a directory: give the one that holds config.json", .0.display())]
    NotADirectory(PathBuf),

    /// A file that a model directory must have.
    #[error("{} not found in {}: {hint}", file, directory.display())]
    NoFile {
        /// The file's name.
        file: &'static str,
        /// The directory.
        directory: PathBuf,
        /// What it is for.
        hint: &'static str,
    },

    /// CPU kernels that the environment asks for and that there are not.
    #[error("{0}")]
    Kernels(String),

    /// A field that is not what it should be.
    #[error("`{field}` {reason}")]
    Field {
        /// The field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },

    /// An architecture that is not in the registry.
    #[error("model_type {found} is not supported (supported: {supported})")]
    UnsupportedArchitecture {
        /// What the config says.
        found: String,
        /// What there is.
        supported: String,
    },

    /// A tokenizer that cannot be read, or that fails.
    #[error("tokenizer: {0}")]
    Tokenizer(String),

    /// A prompt without a token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,

    /// A prompt, or a sequence, beyond the model's context.
    #[error(
        "{what} has {tokens} tokens, more than the {limit} of the model's max_position_embeddings"
    )]
    TooLong {
        /// What it is: the prompt, the input ids.
        what: &'static str,
        /// Its length.
        tokens: usize,
        /// The model's context.
        limit: usize,
    },

    /// A token that the model does not have.
    #[error("token id {id} is outside the model's vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token.
        id: i64,
        /// The size of the vocabulary.
        vocabulary: usize,
    },

    /// An option of sampling outside its range.
    #[error("{option} is {value}, but must be {range}")]
    Sampling {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What it may be.
        range: &'static str,
    },

    /// A stop string without a character.
    #[error("stop is empty, but must have at least one character")]
    EmptyStop,

    /// One request of a batch.
    #[error("request {index}: {source}")]
    InRequest {
        /// Its place among the requests, from 0.
        index: usize,
        /// What is wrong.
        source: Box<ModelError>,
    },

    /// A model that was not made for chat.
    #[error(
        "no chat template for {}: looked for chat_template.jinja, and for `chat_template` in \
         tokenizer_config.json; models tuned for chat have one", .0.display()
    )]
    NoChatTemplate(PathBuf),

    /// A chat template that is no template, or that refuses a chat.
    #[error("chat template{}: {reason}", .line.map_or_else(String::new, |line| format!(", line {line}")))]
    ChatTemplate {
        /// The line of the template.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },

    /// A model that computes no usable scores.
    #[error(
        "the model's logits hold NaN after {tokens} tokens: its weights, or their dtype, are unusable"
    )]
    NanLogits {
        /// Tokens so far.
        tokens: usize,
    },
}

impl ModelError {
    pub(crate) fn field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Field {
            field: field.into(),
            reason: reason.into(),
        }
    }

    /// Says in which request of a batch.
    pub(crate) fn in_request(self, index: usize) -> Self {
        Self::InRequest {
            index,
            source: Box::new(self),
        }
    }

    /// Says in which file.
    pub(crate) fn in_file(self, file: impl Into<PathBuf>) -> Self {
        Self::InFile {
            file: file.into(),
            source: Box::new(self),
        }
    }
}
