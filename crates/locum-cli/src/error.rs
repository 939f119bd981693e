//! What can go wrong on the command line.

use std::io;
use std::path::{Path, PathBuf};

use locum::models::ModelError;
use locum::prune::PruneError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Model(#[from] ModelError),

    /// Boxed: it names much, and results carry it everywhere.
    #[error(transparent)]
    Prune(Box<PruneError>),

    /// The reader of our output has gone.
    #[error("the output was closed")]
    ClosedPipe,

    #[error("cannot write to the output: {0}")]
    Output(io::Error),

    #[error("cannot {action} {}: {reason}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        reason: String,
    },

    #[error("{0}")]
    Usage(String),
}

impl CliError {
    pub(crate) fn file(action: &'static str, path: &Path, reason: impl ToString) -> Self {
        Self::File {
            action,
            path: path.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}

impl From<PruneError> for CliError {
    fn from(error: PruneError) -> Self {
        Self::Prune(Box::new(error))
    }
}

/// Writing to standard output.
impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Output(error),
        }
    }
}
