//! Sharded safetensors checkpoints, read through memory maps.
#![deny(missing_docs)]

mod checkpoint;
mod directory;
mod error;
mod files;
mod header;
mod index;
mod object;

pub use checkpoint::Checkpoint;
pub use error::CheckpointError;
pub use files::read_json;
