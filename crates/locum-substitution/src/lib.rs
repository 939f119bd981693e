//! Constants in place of pruned experts.
//!
//! In a mixture-of-experts model pruned by MoNE (arXiv 2507.00390), a *substituted* expert is a
//! stored constant vector: for a token whose router chose the experts `S` with weights `w`,
//!
//! ```text
//! y = Σ_{e ∈ S retained} w_e · expert_e(x) + Σ_{e ∈ S substituted} w_e · c_e
//! ```
//!
//! The router keeps its size and its logical ids. This crate knows everything about such
//! checkpoints that needs neither tensors' arithmetic nor files: the two ways in which a
//! `config.json` declares them ([`SubstitutionSpec`]), tensor names ([`name`]), where a route leads
//! ([`RouteTable`]), and the boundary at which weights enter a model ([`LoadWeights`],
//! [`ProcessWeightsAfterLoading`], [`Substituted`]).
//!
//! The decision behind [`Substituted`]: layers own their constants, and the one thing that generic
//! code cannot know is where the layers are. So a model implements one visit ([`MoeLayers`], by a
//! derive), and loading, checking and swapping are written once here, in ordinary code that needs
//! no macro to be tested.
//!
//! ```
//! use locum_substitution::{Route, RouteTable, SubstitutionSpec};
//!
//! let config = serde_json::json!({ "approximate_experts": { "1": [3, 1] } });
//! let spec = SubstitutionSpec::from_config(&config)?;
//! let table = RouteTable::new(5, spec.experts(1))?;
//! assert_eq!(table.route(3), Route::Substituted(1));
//! assert_eq!(table.route(4), Route::Retained(2));
//! # Ok::<(), locum_substitution::SubstitutionError>(())
//! ```
#![deny(missing_docs)]

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod config;
mod error;
mod layer;
mod loading;
pub mod name;
mod route;
mod substituted;
mod tensor;
mod tensor_bytes;

pub use config::{
    ConfigFormat, ExpertCounts, LayerExpert, LayerSubstitution, SubstitutionSpec, Target,
};
pub use error::{BoxError, Listing, SubstitutionError};
pub use layer::{
    Constant, ExpertWeights, ModulePath, MoeLayer, MoeLayerInfo, MoeLayerVisitor, MoeLayers,
    PackedPart, PipelineStage, Stage,
};
pub use loading::{LoadWeights, Loaded, ProcessWeightsAfterLoading, SkipRule, WeightStream};
pub use route::{ConstantRoute, Dispatch, Route, RouteTable, TokenWeight};
pub use substituted::Substituted;
pub use tensor::{Dtype, NamedTensor, TensorInfo};
pub use tensor_bytes::{ReadAt, TensorBytes};
