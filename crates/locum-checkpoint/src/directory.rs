//! Which files of a directory are the checkpoint.

use std::path::{Path, PathBuf};

use crate::{CheckpointError, files};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// How a directory keeps its weights.
pub(crate) enum Layout {
    /// In this one file.
    Single(PathBuf),
    /// In the shards that this index names.
    Sharded(PathBuf),
}

/// Finds the weights of a directory.
///
/// Where both files are there, `model.safetensors` wins, as in `from_pretrained` of Hugging Face
/// transformers.
///
/// # Errors
///
/// No directory, or none with weights.
pub(crate) fn layout(directory: &Path) -> Result<Layout, CheckpointError> {
    match files::metadata(directory)? {
        Some(metadata) if metadata.is_dir() => {}
        Some(_) => {
            return Err(CheckpointError::NotADirectory {
                path: directory.into(),
            });
        }
        None => {
            return Err(CheckpointError::NoSuchDirectory {
                path: directory.into(),
            });
        }
    }
    let single = directory.join(SINGLE);
    if files::metadata(&single)?.is_some() {
        return Ok(Layout::Single(single));
    }
    let index = directory.join(INDEX);
    if files::metadata(&index)?.is_some() {
        return Ok(Layout::Sharded(index));
    }
    Err(CheckpointError::NoWeights {
        directory: directory.into(),
        hint: hint(&files::names(directory)?),
    })
}

/// What to do with a directory that holds weights of another kind; empty where it holds none.
fn hint(names: &[String]) -> String {
    let first = |matches: fn(&str) -> bool| names.iter().find(|name| matches(name));
    if let Some(name) = first(|name| name.ends_with(".safetensors")) {
        format!(
            "; it holds `{name}`: a file alone must be called `{SINGLE}`, shards need `{INDEX}`, \
             which may not have been downloaded"
        )
    } else if let Some(name) = first(is_pytorch) {
        format!(
            "; it holds `{name}`, and PyTorch files are not read: save the model again with \
             `safe_serialization=True`"
        )
    } else if let Some(name) = first(|name| name.ends_with(".gguf")) {
        format!(
            "; it holds `{name}`, and GGUF files are not read: download the safetensors files that \
             it was made from"
        )
    } else {
        String::new()
    }
}

fn is_pytorch(name: &str) -> bool {
    // Other `.bin` files, such as `training_args.bin`, are no weights.
    (name.starts_with("pytorch_model") && name.ends_with(".bin"))
        || name.ends_with(".pt")
        || name.ends_with(".pth")
}
