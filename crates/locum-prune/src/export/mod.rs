//! The new checkpoint: what it will hold is known before a byte of it is written.

mod config;
mod files;
mod tensors;
mod verbatim;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use locum_checkpoint::{NewCheckpoint, StagedDirectory, read_text};
use locum_models::{LoadOptions, Model, ModelFiles};
use locum_substitution::ConfigFormat;

use crate::{Constants, Plan, PruneError, Subject};
pub use files::LeftOut;
use files::OtherFiles;

const CONFIG: &str = "config.json";

/// How a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportOptions {
    /// The way in which `config.json` declares constants.
    pub format: ConfigFormat,
    /// The most bytes of tensors that a file holds.
    pub max_shard_bytes: u64,
}

impl Default for ExportOptions {
    /// `approximate_experts`, and files of 5 GB.
    fn default() -> Self {
        Self {
            format: ConfigFormat::ApproximateExperts,
            max_shard_bytes: 5_000_000_000,
        }
    }
}

/// A checkpoint that is ready to be written.
///
/// Weights go from file to file, and are never all in memory; every other file of the model is copied
/// as it is, but for `config.json`, for weights in other forms, which would be those of the unpruned
/// model, and for what is hidden or no file.
pub struct Export<'a> {
    subject: &'a Subject,
    checkpoint: NewCheckpoint,
    config: String,
    others: OtherFiles,
}

impl<'a> Export<'a> {
    /// Works out what a pruned model consists of.
    ///
    /// # Errors
    ///
    /// A plan that is not for the model, a constant that the experts' type cannot hold, or a
    /// directory that cannot be listed.
    pub fn new(
        subject: &'a Subject,
        plan: &Plan,
        constants: &Constants,
        options: &ExportOptions,
    ) -> Result<Self, PruneError> {
        plan.check(subject)?;
        let declared = tensors::Declared::new(subject, plan, options.format);
        let tensors = tensors::new_tensors(subject, constants, &declared)?;
        let path = subject.directory().join(CONFIG);
        let text = read_text(&path)?;
        let text = text.trim_start_matches('\u{feff}');
        let config = config::edited(text, &declared, options.format);
        Ok(Self {
            subject,
            checkpoint: NewCheckpoint::new(tensors, options.max_shard_bytes)?,
            config: config.ok_or_else(|| PruneError::Io {
                action: "read",
                path,
                source: io::ErrorKind::InvalidData.into(),
            })?,
            others: OtherFiles::of(subject)?,
        })
    }

    /// The bytes of the model's tensors.
    #[must_use]
    pub fn bytes_before(&self) -> u64 {
        self.subject.checkpoint().total_bytes()
    }

    /// The bytes of the new model's tensors.
    #[must_use]
    pub fn bytes_after(&self) -> u64 {
        self.checkpoint.total_bytes()
    }

    /// The files of tensors that there will be.
    #[must_use]
    pub fn checkpoint(&self) -> &NewCheckpoint {
        &self.checkpoint
    }

    /// What of the model's directory is neither copied nor read for its weights: weights in another
    /// form, hidden files, links to directories or to nothing.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.others.left_out
    }

    /// Writes the checkpoint into a directory that appears when it is complete and not before.
    /// `progress` gets numbers of bytes of tensors.
    ///
    /// # Errors
    ///
    /// Those of [`ExportDirectory::create`], which may be made earlier and [filled](Self::fill).
    pub fn write(
        &self,
        out: impl AsRef<Path>,
        replace: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), PruneError> {
        self.fill(
            ExportDirectory::create(self.subject, out, replace)?,
            progress,
        )
    }

    /// Writes the checkpoint into a directory that waits for it.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or written, or is shorter than what was written to it.
    pub fn fill(
        &self,
        directory: ExportDirectory,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), PruneError> {
        let ExportDirectory { staged, out } = directory;
        self.others
            .copy(self.subject.directory(), staged.path(), &out)?;
        files::write(staged.path(), &out, CONFIG, self.config.as_bytes())?;
        self.checkpoint.write(staged.path(), &out, progress)?;
        // By the headers: what is published can be loaded.
        Model::plan(&ModelFiles::open(staged.path())?, &LoadOptions::default())?;
        staged.publish()?;
        Ok(())
    }
}

/// A place for a checkpoint that was checked, and can be written to: to be made before anything is
/// computed that would be lost. Dropped, it leaves nothing.
pub struct ExportDirectory {
    staged: StagedDirectory,
    /// As it was given, for messages.
    out: PathBuf,
}

impl ExportDirectory {
    /// Begins the directory `out` of a checkpoint that is made from a model.
    ///
    /// # Errors
    ///
    /// An output that is there already, unless `replace` says that it may be replaced; one with files
    /// that are neither weights of a model nor in this one; one that is
    /// within the model's directory, or that the model is in, or that holds files which the model's
    /// directory has links to; a place that cannot be written to.
    pub fn create(
        subject: &Subject,
        out: impl AsRef<Path>,
        replace: bool,
    ) -> Result<Self, PruneError> {
        let out = out.as_ref();
        check_output(subject, out)?;
        let staged = StagedDirectory::create(out, replace)?;
        let others = OtherFiles::of(subject)?;
        if let Some(lost) = others.foreign(out).map_err(|error| PruneError::Io {
            action: "list",
            path: out.into(),
            source: error,
        })? {
            return Err(PruneError::Output {
                out: out.into(),
                reason: format!(
                    "it holds `{lost}`, which the new model does not: move it elsewhere"
                ),
            });
        }
        Ok(Self {
            staged,
            out: out.into(),
        })
    }
}

/// Checks that an output directory does not touch what it is made from.
fn check_output(subject: &Subject, out: &Path) -> Result<(), PruneError> {
    let refused = |reason: String| {
        Err(PruneError::Output {
            out: out.into(),
            reason,
        })
    };
    let Some(target) = real(out) else {
        return Ok(());
    };
    let model = subject.directory();
    if let Ok(found) = fs::canonicalize(model) {
        if target == found {
            return refused("it is the model itself: give another directory".into());
        }
        if target.starts_with(&found) {
            return refused(format!(
                "it is inside the model's directory {}: give one outside",
                model.display()
            ));
        }
        if found.starts_with(&target) {
            return refused(format!(
                "the model's directory {} is inside it: give one beside it",
                model.display()
            ));
        }
    }
    let weights = subject.checkpoint().files().map(Path::to_path_buf);
    let others = OtherFiles::of(subject)?.copied;
    let others = others.iter().map(|file| model.join(file));
    for file in weights.chain(others) {
        if fs::canonicalize(&file).is_ok_and(|file| file.starts_with(&target)) {
            return refused(format!(
                "it holds what {} is a link to: give another directory",
                file.display()
            ));
        }
    }
    Ok(())
}

/// Where a path leads, links resolved; its last part need not exist.
fn real(path: &Path) -> Option<PathBuf> {
    if let Ok(found) = fs::canonicalize(path) {
        return Some(found);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Some(fs::canonicalize(parent).ok()?.join(path.file_name()?))
}
