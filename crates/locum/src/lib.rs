//! Run mixture-of-experts language models whose pruned experts are constants.
//!
//! A *locum* stands in for an absent professional: here a stored constant vector stands in for a
//! pruned expert (MoNE, arXiv 2507.00390). This crate is the one that a program depends on; it
//! re-exports the others:
//!
//! | module | what is in it |
//! |---|---|
//! | [`substitution`] | configurations, tensor names, routes, the weight-loading traits |
//! | [`checkpoint`] | safetensors files and shards |
//! | [`nn`] | Burn layers: routed experts with constants, routers, attention |
//! | [`models`] | architectures, and text generation |
//! | [`prune`] | calibrate a model, rank its experts, and export it with constants in their place |
//! | [`eplb`] | where expert replicas go on a cluster |
//!
//! To use a checkpoint of a known architecture, start at [`models::Model`]. To let a model struct of
//! your own take substituted checkpoints, annotate it with [`expert_substitution`].
#![deny(missing_docs)]

/// The Burn release that everything here is built on.
pub use burn;
pub use eplb;
pub use locum_checkpoint as checkpoint;
pub use locum_models as models;
pub use locum_nn as nn;
pub use locum_prune as prune;
pub use locum_substitution as substitution;

pub use locum_macros::{MoeLayers, expert_substitution};
pub use locum_substitution::{
    Constant, ExpertWeights, LoadWeights, Loaded, ModulePath, MoeLayer, MoeLayerInfo,
    MoeLayerVisitor, MoeLayers, NamedTensor, PipelineStage, ProcessWeightsAfterLoading, Stage,
    Substituted, SubstitutionError, SubstitutionSpec, WeightStream,
};

#[doc(hidden)]
pub use locum_substitution::__private;

/// What a program that defines or runs a model usually needs.
pub mod prelude {
    pub use crate::{
        LoadWeights, Loaded, MoeLayer, MoeLayers, PipelineStage, ProcessWeightsAfterLoading, Stage,
        SubstitutionError, SubstitutionSpec, WeightStream, expert_substitution,
    };
}
