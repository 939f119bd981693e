//! The files beside the weights: tokenizer, templates, model card, code.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use locum_checkpoint::check_length;

use crate::{PruneError, Subject};

/// What a model's directory holds beside its configuration and weights.
pub(super) struct OtherFiles {
    /// Files to be copied, relative to the directory, sorted.
    pub(super) copied: Vec<PathBuf>,
    /// All else but the weights that are read and their index, sorted.
    pub(super) left_out: Vec<LeftOut>,
}

/// What is in a model's directory and not in that of the pruned one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// Its path below the model's directory.
    pub path: PathBuf,
    /// What it is: the reason.
    pub reason: &'static str,
}

/// In another form, or shards that the index does not name.
const UNREAD: &str = "weights that are not read";

/// How names of files with weights end.
const WEIGHTS: [&str; 14] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".ggml",
    ".h5",
    ".msgpack",
    ".npz",
    ".onnx",
    ".onnx_data",
];

impl OtherFiles {
    /// Lists a model's directory, and the directories in it. Hidden ones and hidden files are those of
    /// Git and of download tools, and are left out; links to directories are not followed.
    /// The weights that are read, and the index that names them, are neither copied nor left out.
    pub(super) fn of(subject: &Subject) -> Result<Self, PruneError> {
        let directory = subject.directory();
        let mut files = Self {
            copied: Vec::new(),
            left_out: Vec::new(),
        };
        files.list(directory, Path::new(""))?;
        let read: Vec<PathBuf> = subject
            .checkpoint()
            .files()
            .map(Path::to_path_buf)
            .collect();
        let sharded = !read.contains(&directory.join("model.safetensors"));
        files.left_out.retain(|left| {
            let index = sharded && left.path == Path::new("model.safetensors.index.json");
            !index && !read.contains(&directory.join(&left.path))
        });
        files.copied.sort();
        files.left_out.sort();
        Ok(files)
    }

    fn list(&mut self, directory: &Path, below: &Path) -> Result<(), PruneError> {
        let here = directory.join(below);
        for entry in fs::read_dir(&here).map_err(failed("list", &here))? {
            let entry = entry.map_err(failed("list", &here))?;
            let name = entry.file_name();
            let relative = below.join(&name);
            if relative == Path::new("config.json") {
                continue;
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(failed("look at", &path))?;
            let lower = name.to_string_lossy().to_lowercase();
            let reason = if name.as_encoded_bytes().starts_with(b".") {
                "hidden"
            } else if kind.is_dir() {
                self.list(directory, &relative)?;
                continue;
            } else if WEIGHTS.iter().any(|end| lower.ends_with(end)) {
                UNREAD
            } else {
                // Links to files are followed: the Hugging Face cache has nothing else.
                match fs::metadata(&path) {
                    Ok(found) if found.is_file() => {
                        self.copied.push(relative);
                        continue;
                    }
                    Ok(found) if found.is_dir() => "a link to a directory",
                    Ok(_) => "no regular file",
                    Err(error) if kind.is_symlink() && error.kind() == io::ErrorKind::NotFound => {
                        "a link to nothing"
                    }
                    Err(error) => return Err(failed("look at", &path)(error)),
                }
            };
            self.left_out.push(LeftOut {
                path: relative,
                reason,
            });
        }
        Ok(())
    }

    /// A file in a directory that is to be replaced, if there is one, that the new one will not have: neither
    /// copied, nor the configuration, nor weights under the names that models have.
    pub(super) fn foreign(&self, directory: &Path) -> io::Result<Option<String>> {
        let Ok(entries) = fs::read_dir(directory) else {
            return Ok(None);
        };
        let mut foreign = Vec::new();
        for entry in entries {
            let name = PathBuf::from(entry?.file_name());
            let text = name.to_string_lossy();
            let weights = text.starts_with("model")
                && (text.ends_with(".safetensors") || text.ends_with(".safetensors.index.json"));
            let copied = self.copied.iter().any(|file| file.starts_with(&name));
            if !weights && !copied && text != "config.json" {
                foreign.push(text.into_owned());
            }
        }
        Ok(foreign.into_iter().min())
    }

    /// Copies the files; messages call the new directory `shown`.
    pub(super) fn copy(&self, from: &Path, to: &Path, shown: &Path) -> Result<(), PruneError> {
        for file in &self.copied {
            let shown = shown.join(file);
            if let Some(parent) = file.parent() {
                fs::create_dir_all(to.join(parent)).map_err(failed("create", &shown))?;
            }
            let source = from.join(file);
            let mut input = File::open(&source).map_err(failed("read", &source))?;
            let mut output = File::create_new(to.join(file)).map_err(failed("create", &shown))?;
            let copied = io::copy(&mut input, &mut output).map_err(failed("write", &shown))?;
            drop(output);
            check_length(&to.join(file), &shown, copied)?;
        }
        Ok(())
    }
}

/// Writes a new file; messages call the directory `shown`.
pub(super) fn write(
    directory: &Path,
    shown: &Path,
    name: &str,
    contents: &[u8],
) -> Result<(), PruneError> {
    let shown = shown.join(name);
    let path = directory.join(name);
    let mut file = File::create_new(&path).map_err(failed("create", &shown))?;
    file.write_all(contents).map_err(failed("write", &shown))?;
    drop(file);
    Ok(check_length(&path, &shown, contents.len() as u64)?)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PruneError {
    let path = path.into();
    move |source| PruneError::Io {
        action,
        path,
        source,
    }
}
