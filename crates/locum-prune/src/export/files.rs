//! The files beside the weights: tokenizer, templates, model card, code.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::{PruneError, Subject};

/// What a model's directory holds beside its configuration and weights.
pub(super) struct OtherFiles {
    /// Files to be copied, relative to the directory, sorted.
    pub(super) copied: Vec<PathBuf>,
    /// Weights in another form, or shards that the index does not name: they are of the unpruned
    /// model.
    pub(super) left_out: Vec<PathBuf>,
}

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
    /// Git and of download tools, and are passed over; links to directories are not followed.
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
        files.left_out.retain(|file| {
            let index = sharded && file == Path::new("model.safetensors.index.json");
            !index && !read.contains(&directory.join(file))
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
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(b".") || relative == Path::new("config.json") {
                continue;
            }
            let path = entry.path();
            if entry
                .file_type()
                .map_err(failed("look at", &path))?
                .is_dir()
            {
                self.list(directory, &relative)?;
                continue;
            }
            let lower = name.to_string_lossy().to_lowercase();
            if WEIGHTS.iter().any(|end| lower.ends_with(end)) {
                self.left_out.push(relative);
                continue;
            }
            // Links are followed: the Hugging Face cache has nothing else.
            if fs::metadata(&path)
                .map_err(failed("look at", &path))?
                .is_file()
            {
                self.copied.push(relative);
            }
        }
        Ok(())
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
            io::copy(&mut input, &mut output).map_err(failed("write", &shown))?;
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
    let mut file = File::create_new(directory.join(name)).map_err(failed("create", &shown))?;
    file.write_all(contents).map_err(failed("write", &shown))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PruneError {
    let path = path.into();
    move |source| PruneError::Io {
        action,
        path,
        source,
    }
}
