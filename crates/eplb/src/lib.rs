//! Expert-parallel load balancing for mixture-of-experts models: which ranks hold which experts,
//! and how often.
//!
//! In expert-parallel serving each rank holds some experts of every MoE layer, and a layer is done
//! when its busiest rank is. Loads are uneven, so popular experts get several *replicas*, in
//! *slots* beyond one per expert. This crate plans the replicas of every layer, checks and explains
//! the plan, and schedules the way there. It knows nothing of tensors or devices: loads in, slot
//! numbers out.
//!
//! ```
//! use eplb::{Cluster, Loads, Planner, Problem, Refined, Slots};
//!
//! // Routes that each of 8 experts of one layer received.
//! let loads = Loads::new(vec![vec![600.0, 560.0, 120.0, 120.0, 20.0, 10.0, 10.0, 10.0]])?;
//! // 16 slots on 8 ranks of one node.
//! let problem = Problem::builder(loads, Cluster::new(8, 1)?, Slots::Same(16)).build()?;
//! let plan = Refined.plan(&problem)?;
//!
//! // The two popular experts get 5 and 3 replicas; the busiest rank has 196.7 routes. Filling ranks greedily gives 232.
//! assert_eq!(plan.placement.logical_count(), [[5, 3, 2, 2, 1, 1, 1, 1]]);
//! assert!((plan.layers[0].maximum - 196.667).abs() < 1e-3);
//! println!("{}", plan.reason);
//! # Ok::<(), eplb::Error>(())
//! ```
//!
//! # Design
//!
//! **Replica counts and places are one decision.** The published algorithms choose counts first (so
//! that the largest share is smallest) and then pack. In the example above no packing of the counts
//! that come first is better than 232, 18 % more than the optimum. [`Refined`] packs, trades slots
//! between ranks, and changes counts where trades do not get near the lower bound. On 58 layers of
//! 256 experts that takes milliseconds, and ends within 0.1 % of a bound that no placement can
//! beat, so there is little left to search for.
//!
//! **A plan carries its proof.** A [`Plan`] states its [balancedness](Plan::balancedness), a [lower
//! bound](LowerBound), the [gap](Plan::gap) to it, [moves](Plan::moves), [bytes](Plan::bytes), and
//! a [reason](Plan::reason). Every plan has passed [`Placement::validate`].
//!
//! **Moves cost.** A plan from scratch moves nearly every expert when loads drift. [`Incremental`]
//! starts from the placement that is there, spends a budget where it gains most, and does nothing
//! where the gain does not pay.
//!
//! **The same input gives the same plan.** Ties go to the lowest id; searches are bounded by
//! counted work, and their random numbers are seeded. Arithmetic is `f64`, except in [`DeepSeek`],
//! which is `f32` as published.
//!
//! **Three index spaces.** The router's [`LogicalExpert`], the [`RetainedExpert`] that has weights,
//! and the [`Slot`]. Only retained experts are placed.
//!
//! # Terms
//!
//! | term | meaning |
//! |---|---|
//! | load of an expert | routes (token, expert) that it received in a window |
//! | share | an expert's load divided by its replicas: tokens are spread evenly over them |
//! | rank load | sum of the shares in its slots, divided by the rank's speed |
//! | balancedness | Σ over layers of the mean rank load / Σ of the maximum |
//! | lower bound | of a layer's maximum: the larger of `Σw / Σspeed` and the best achievable `max w/r`; with groups on nodes, the best assignment of groups |
//! | gap | Σ maximum / Σ bound − 1 |
//! | move | an expert that arrives on a rank which did not hold it |
//!
//! # What is where
//!
//! - [`collect_moe_layers`], [`ModelGeometry`]: finding a model's MoE layers through two traits
//!   that it implements.
//! - [`dspark_draft_supports_eplb`], [`can_share_state`]: what a draft shares with its target.
//! - [`Recorder`], [`BalancingState`], [`Loads`], [`hash_routed_load`]: loads.
//! - [`Problem`], [`Cluster`], [`Planner`] and the planners [`Refined`], [`Greedy`], [`DeepSeek`],
//!   [`Incremental`].
//! - [`Plan`], [`Placement`], [`Schedule`].
//! - [`Format`], [`Placement::from_json`], [`Placement::to_sglang`], [`Placement::to_vllm`]:
//!   exchange with serving engines.
//! - [`synthetic`]: seeded loads for tests and benchmarks.

#![deny(missing_docs)]

mod apportion;
mod bound;
mod cluster;
mod collect;
mod error;
mod index;
mod interchange;
mod load;
mod moves;
mod placement;
mod plan;
mod planner;
mod problem;
mod recorder;
mod search;
mod sharing;
pub mod synthetic;
mod transfer;
mod validate;
mod wording;

pub use bound::{BoundKind, LowerBound};
pub use cluster::Cluster;
pub use collect::{
    DecoderLayer, FeedForward, Geometry, LayerGeometry, ModelGeometry, MoeBlock, MoeLayers,
    collect_moe_layers, expert_groups,
};
pub use error::Error;
pub use index::{LogicalExpert, RetainedExpert, Slot};
pub use interchange::{Format, HiddenLayers};
pub use load::{LARGEST_LOAD, Loads, Scope, Summary, hash_routed_load};
pub use placement::{LayerPlacement, Placement};
pub use plan::{LayerReport, Plan, WorstLayer};
pub use planner::{DeepSeek, Greedy, Incremental, MoveCosts, Planner, Refined};
pub use problem::{Problem, ProblemBuilder, Slots};
pub use recorder::{BalancingState, ModelState, Recorder};
pub use sharing::{Mismatch, MismatchKind, can_share_state, dspark_draft_supports_eplb};
pub use transfer::{LayerSchedule, LocalCopy, Reload, Schedule, Transfer};
pub use validate::{Duplicate, Duplicates};
