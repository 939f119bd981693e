//! Mixture-of-experts architectures, read from Hugging Face directories, and text generation.
//!
//! [`ModelFiles`] is a model's directory (or a model embedded in a program), [`Model`] what becomes
//! of it: an architecture from the [registry], wrapped by `#[expert_substitution]`, its weights
//! loaded and checked. [`Generator`] makes text, of one prompt or of many side by side;
//! [`ChatTemplate`] makes a prompt of a chat.
#![deny(missing_docs)]

pub mod architectures;
mod awake;
mod config;
mod decoder;
mod error;
mod files;
mod generate;
mod hyper_connected;
mod language_model;
mod memory;
mod model;
mod moe;
mod pre_norm;
mod progress;
pub mod registry;

pub use config::FieldLog;
pub use decoder::{DecoderConfig, DecoderLayer, DecoderLm, SubstitutedDecoderLm};
pub use error::ModelError;
pub use files::ModelFiles;
pub use generate::{
    Cancellation, Chat, ChatTemplate, Finish, GenerateOptions, Generated, Generator, Message,
    Prompt, RepetitionPenalty, Request, Sampler, Sampling,
};
pub use hyper_connected::{
    CachedElements, HyperConnectedConfig, HyperConnectedLayer, HyperConnectedLm,
    SubstitutedHyperConnectedLm,
};
pub use language_model::{CausalLm, Limits, Logits};
pub use memory::{LayerMemory, MemoryPlan};
pub use model::{LoadOptions, Model};
pub use moe::MoeConfig;
pub use pre_norm::PreNormLayer;
pub use registry::ArchitectureConfig;
