//! A model's files: a Hugging Face directory, or a model embedded in a program.

use std::io;
use std::path::{Path, PathBuf};

use locum_checkpoint::{Checkpoint, read_file, read_json};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::ModelError;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";

/// A model before it is built: its configuration is read, its weights and tokenizer are not.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    source: Source,
    config: Value,
    generation_config: Option<Value>,
}

#[derive(Clone, Debug)]
enum Source {
    Directory(PathBuf),
    Embedded {
        name: &'static str,
        tokenizer: &'static [u8],
        weights: &'static [u8],
    },
}

impl ModelFiles {
    /// Reads the configuration in a Hugging Face model directory.
    ///
    /// # Errors
    ///
    /// No such directory, no `config.json` in it, or one that is not JSON.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self, ModelError> {
        let directory = directory.into();
        match std::fs::metadata(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ModelError::NoDirectory(directory));
            }
            Ok(found) if !found.is_dir() => {
                return Err(ModelError::NotADirectory(directory));
            }
            // What else keeps it from being read is said of its files.
            _ => {}
        }
        if !is_there(&directory.join(CONFIG)) {
            return Err(ModelError::NoFile {
                file: CONFIG,
                directory,
                hint: "it says which architecture the weights are of",
            });
        }
        let generation = directory.join(GENERATION_CONFIG);
        let generation_config = is_there(&generation)
            .then(|| read_json(&generation))
            .transpose()?;
        if generation_config
            .as_ref()
            .is_some_and(|config| !config.is_object())
        {
            return Err(
                ModelError::field("generation_config", "must be a JSON object").in_file(generation),
            );
        }
        Ok(Self {
            config: read_json(directory.join(CONFIG))?,
            generation_config,
            source: Source::Directory(directory),
        })
    }

    /// A model that is part of the program; `name` is what messages call it.
    ///
    /// # Errors
    ///
    /// A configuration that is not JSON.
    pub fn embedded(
        name: &'static str,
        config: &str,
        generation_config: &str,
        tokenizer: &'static [u8],
        weights: &'static [u8],
    ) -> Result<Self, ModelError> {
        let json = |file: &str, text: &str| {
            serde_json::from_str(text)
                .map_err(|e| ModelError::field(file, format!("is not JSON: {e}")).in_file(name))
        };
        Ok(Self {
            config: json(CONFIG, config)?,
            generation_config: Some(json(GENERATION_CONFIG, generation_config)?),
            source: Source::Embedded {
                name,
                tokenizer,
                weights,
            },
        })
    }

    /// The `config.json`.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The directory, or the name of an embedded model.
    #[must_use]
    pub fn name(&self) -> &Path {
        match &self.source {
            Source::Directory(directory) => directory,
            Source::Embedded { name, .. } => Path::new(name),
        }
    }

    /// The directory, unless the model is embedded.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.source {
            Source::Directory(directory) => Some(directory),
            Source::Embedded { .. } => None,
        }
    }

    /// Says that something is wrong with the `config.json`.
    pub(crate) fn in_config(&self, error: ModelError) -> ModelError {
        error.in_file(self.name().join(CONFIG))
    }

    /// Opens the weights: headers only.
    ///
    /// # Errors
    ///
    /// Files that are missing or disagree with each other.
    pub fn checkpoint(&self) -> Result<Checkpoint, ModelError> {
        Ok(match &self.source {
            Source::Directory(directory) => Checkpoint::open(directory)?,
            Source::Embedded { weights, .. } => Checkpoint::from_static(weights)?,
        })
    }

    /// Reads the tokenizer.
    ///
    /// # Errors
    ///
    /// No `tokenizer.json`, or one that cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer, ModelError> {
        let (path, parsed) = match &self.source {
            Source::Directory(directory) => {
                let path = directory.join(TOKENIZER);
                if !is_there(&path) {
                    return Err(ModelError::NoFile {
                        file: TOKENIZER,
                        directory: directory.clone(),
                        hint: "text needs the model's tokenizer; token ids do not (locum logits)",
                    });
                }
                let parsed = Tokenizer::from_bytes(read_file(&path)?);
                (path, parsed)
            }
            Source::Embedded {
                name, tokenizer, ..
            } => (
                Path::new(name).join(TOKENIZER),
                Tokenizer::from_bytes(tokenizer),
            ),
        };
        parsed.map_err(|error| ModelError::Tokenizer(error.to_string()).in_file(path))
    }

    /// The tokens that end a text: those of `generation_config.json`, or else of `config.json`.
    ///
    /// # Errors
    ///
    /// An `eos_token_id` that is neither a token id nor a list of some.
    pub fn end_tokens(&self) -> Result<Vec<u32>, ModelError> {
        const FIELD: &str = "eos_token_id";
        let named = [
            (GENERATION_CONFIG, self.generation_config.as_ref()),
            (CONFIG, Some(&self.config)),
            (CONFIG, self.config.get("text_config")),
        ];
        let found = named.into_iter().find_map(|(file, config)| {
            let value = config?.get(FIELD).filter(|value| !value.is_null())?;
            Some((file, value))
        });
        let Some((file, value)) = found else {
            return Ok(Vec::new());
        };
        let id = |value: &Value| {
            value
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    ModelError::field(
                        FIELD,
                        format!("must be a token id or a list, found {value}"),
                    )
                    .in_file(self.name().join(file))
                })
        };
        match value.as_array() {
            Some(list) => list.iter().map(id).collect(),
            None => Ok(vec![id(value)?]),
        }
    }
}

/// Whether a directory has an entry of this name, be it a link to nowhere: reading it says that.
fn is_there(path: &Path) -> bool {
    !matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}
