//! What can go wrong in making a checkpoint.

use locum_checkpoint::CheckpointError;
use locum_models::ModelError;

/// What can go wrong in making a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// Of the model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Of its files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}
