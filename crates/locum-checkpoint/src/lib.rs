//! Sharded safetensors checkpoints: read through memory maps, and written tensor by tensor.
//!
//! ```
//! use locum_checkpoint::Checkpoint;
//! # fn vector(name: &str, value: f32) -> Vec<u8> {
//! #     let header = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
//! #     let length = (header.len() as u64).to_le_bytes();
//! #     [&length, header.as_bytes(), &value.to_le_bytes()].concat()
//! # }
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//!
//! # std::fs::write(directory.join("model-1.safetensors"), vector("lm_head.weight", 1.5))?;
//! # std::fs::write(directory.join("model-2.safetensors"), vector("model.norm.weight", 2.5))?;
//! std::fs::write(
//!     directory.join("model.safetensors.index.json"),
//!     r#"{"weight_map": {"lm_head.weight": "model-1.safetensors",
//!                        "model.norm.weight": "model-2.safetensors"}}"#,
//! )?;
//!
//! let checkpoint = Checkpoint::open(directory)?;
//! for info in checkpoint.infos() {
//!     println!("{} {} {:?}", info.name, info.dtype, info.shape);
//! }
//! assert_eq!(checkpoint.total_bytes(), 8);
//! assert_eq!(checkpoint.tensor("model.norm.weight")?.to_f32(), Some(vec![2.5]));
//!
//! // What a model's `load_weights` takes.
//! let mut weights = checkpoint.weights();
//! assert_eq!(weights.next().transpose()?.as_ref().map(|t| t.name()), Some("lm_head.weight"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why a reader of its own
//!
//! A mixture-of-experts checkpoint has tens of thousands of small tensors, spread over shards that
//! together are larger than memory. `burn-store` reads one safetensors file and no index, parses
//! the header again for each tensor, and copies every tensor. Here each header is parsed when the
//! checkpoint is opened, and a tensor is a slice of the memory map: the weights of a substituted
//! expert, which no model asks for, are never read from disk.
//!
//! Opening reads all headers rather than each shard's on first use. It costs little, a header being
//! a small part of a shard, and everything that is wrong with the files is said before a model
//! starts to load: a missing or truncated shard, an index that belongs to other files, two tensors
//! of one name. The parsing is that of the `safetensors` crate; this crate adds what a single file
//! cannot show, the names that come twice, and messages that say which tensor of which file.
//!
//! # Alignment
//!
//! The format does not align tensors to their element type, and bytes that are embedded in a
//! program start anywhere. A misaligned tensor is no error here: whoever wants to see its bytes as
//! numbers checks, and copies where they are not aligned. Files that the `safetensors` crate wrote
//! are aligned, tensor by tensor, when they are mapped.
//!
//! # Writing
//!
//! [`NewCheckpoint`] divides tensors into shards before any byte of them is read: a header needs
//! names and sizes only. Then file after file is written from front to back, each tensor straight
//! from the file that holds it ([`StoredBytes`]), so that a checkpoint larger than memory is copied
//! with no more memory than a buffer. [`StagedDirectory`] makes a directory appear whole or not at all.
//!
//! # Files that change
//!
//! A memory map shows what is in the file *now*. [`Checkpoint::open`] says what that asks of the
//! files; [`Checkpoint::from_bytes`] with the bytes of a file asks nothing, and takes the memory.
#![deny(missing_docs)]

mod checkpoint;
mod directory;
mod error;
mod files;
mod header;
mod index;
mod map;
mod object;
mod staging;
mod stored;
mod writer;

pub use checkpoint::Checkpoint;
pub use error::CheckpointError;
pub use files::{check_length, read_file, read_json, read_text};
pub use map::FileMap;
pub use staging::StagedDirectory;
pub use stored::StoredBytes;
pub use writer::{NewCheckpoint, NewTensor};
