//! Burn layers for mixture-of-experts language models, with or without substituted experts.
//!
//! Weights stay in memory as they are stored (`f32`, `f16` or `bf16`); a layer computes in the type
//! of its input, its *activations*, and in `f32` wherever the two differ. Parameters keep the names
//! and shapes of Hugging Face checkpoints, so that a model built of these layers has parameter paths
//! that are tensor names. The exception is [`RoutedExperts`], which packs the retained experts and
//! owns the constants of the substituted ones.
//!
//! Everything here is lazy until weights are loaded: building a model allocates no weight.
#![deny(missing_docs)]

mod attention;
mod cache;
mod embedding;
mod experts;
mod extension;
mod feed_forward;
mod hyper_connection;
mod linear;
mod load;
mod memory;
mod mlp;
mod moe;
mod norm;
mod observer;
mod parameter;
mod rotary;
mod router;
mod step;
mod yarn;

pub use attention::{
    AttentionOptions, AttentionShape, CompressedAttention, CompressedOptions, Compression,
    Compressor, GroupedQueryAttention, HeadNorm, IndexOptions, Indexer, LatentAttention,
    LatentOptions, LatentShape, SelfAttention, attend,
};
pub use cache::{KvCache, LayerCache};
pub use embedding::Embedding;
pub use experts::{ExpertNames, ExpertsConfig, RoutedExperts, Routes};
pub use extension::{cpu_variant, kernels};
pub use feed_forward::FeedForward;
pub use hyper_connection::{HyperConnection, HyperOptions, HyperParameters, StreamMixing};
pub use linear::Linear;
pub use load::{check_parameters, load_parameters, none_missing};
pub use mlp::{ClampedMlp, GatedMlp, Mlp};
pub use moe::SparseMoe;
pub use norm::RmsNorm;
pub use observer::{ExpertObserver, ExpertOutputs, Observation, RouteOutputs};
pub use rotary::{RotaryConfig, RotaryEmbedding, RotaryOrder};
pub use router::{GroupScore, Groups, Router, RoutingRule, Scoring};
pub use step::Step;
pub use yarn::Yarn;

pub use burn::tensor::{DType, Device, DeviceKind};
