//! The crate's one error type.

use crate::wording::{are, counted};

/// Everything that can be wrong with an input, a placement or a file.
///
/// Messages name the layer, expert, rank or slot, what was expected and what was found, and what to
/// do when that is known.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A load is NaN, infinite or negative.
    #[error(
        "window {window}, layer {layer}, expert {expert}: load {value} is not a finite number of at least 0; \
         remove the window or record it again"
    )]
    LoadValue {
        /// Window of the load.
        window: usize,
        /// Layer of the load.
        layer: usize,
        /// Expert of the load.
        expert: usize,
        /// The value, as text, so that errors can be compared.
        value: String,
    },
    /// A count is above 2^53, where an `f64` no longer holds every integer.
    #[error(
        "window {window}, layer {layer}, expert {expert}: load {value} is above 2^53 and cannot be held exactly; \
         record shorter windows or scale the loads down"
    )]
    LoadTooLarge {
        /// Window of the load.
        window: usize,
        /// Layer of the load.
        layer: usize,
        /// Expert of the load.
        expert: usize,
        /// The value, as text.
        value: String,
    },
    /// There are no windows, or a layer has no experts.
    #[error("{what}: expected at least one, found none")]
    Empty {
        /// What is empty.
        what: String,
    },
    /// Two things that must have the same shape do not.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// What is compared.
        what: String,
        /// The expected shape.
        expected: String,
        /// The shape that was found.
        found: String,
    },
    /// The current placement does not have the problem's layers, experts, slots or ranks.
    #[error("{place}: expected {expected}, found {found}")]
    CurrentShape {
        /// The current placement, or a layer of it.
        place: String,
        /// The expected shape.
        expected: String,
        /// The shape that was found.
        found: String,
    },
    /// A layer has fewer usable slots than experts.
    #[error(
        "layer {layer}: {} on live ranks cannot hold {}; use at least {} on live ranks",
        counted(*slots, "slot"),
        counted(*experts, "expert"),
        counted(*experts, "slot")
    )]
    TooFewSlots {
        /// The layer.
        layer: usize,
        /// Slots on live ranks.
        slots: usize,
        /// Experts of the layer.
        experts: usize,
    },
    /// The slots of a layer do not divide among the ranks.
    #[error(
        "layer {layer}: {} {} not a multiple of {}; use {nearest} slots, or allow uneven slots",
        counted(*slots, "slot"),
        are(*slots),
        counted(*ranks, "rank")
    )]
    UnevenSlots {
        /// The layer.
        layer: usize,
        /// Slots that were asked for.
        slots: usize,
        /// Number of ranks.
        ranks: usize,
        /// The nearest numbers that are possible, as text ("288 or 320").
        nearest: String,
    },
    /// Expert groups do not divide the experts of a layer.
    #[error(
        "layer {layer}: {} cannot be divided into {}; use a divisor of {experts}, or 1",
        counted(*experts, "expert"),
        counted(*groups, "group")
    )]
    Groups {
        /// The layer.
        layer: usize,
        /// Experts of the layer.
        experts: usize,
        /// Expert groups.
        groups: usize,
    },
    /// A setting has a value that it cannot have.
    #[error("{what}: {found}; {remedy}")]
    Setting {
        /// The setting.
        what: String,
        /// What was found.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// An expert has no replica.
    #[error(
        "layer {layer}: expert {expert} has no replica; every expert needs a slot on a live rank"
    )]
    Uncovered {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
    },
    /// A slot names an expert that the layer does not have.
    #[error("layer {layer}, slot {slot}: expert {expert} is not one of the layer's {experts}")]
    UnknownExpert {
        /// The layer.
        layer: usize,
        /// The slot.
        slot: usize,
        /// The expert that was named.
        expert: usize,
        /// Experts of the layer.
        experts: usize,
    },
    /// A live rank leaves a slot empty, or a dead one fills it.
    #[error("layer {layer}, slot {slot} of rank {rank}: {found}; {expected}")]
    SlotUse {
        /// The layer.
        layer: usize,
        /// The rank.
        rank: usize,
        /// The slot.
        slot: usize,
        /// What was found.
        found: &'static str,
        /// What was expected.
        expected: &'static str,
    },
    /// The logical-to-physical map lists more replicas than there are slots.
    #[error(
        "layer {layer}: {} {} listed for {}",
        counted(*replicas, "replica"),
        are(*replicas),
        counted(*slots, "slot")
    )]
    TooManyReplicas {
        /// The layer.
        layer: usize,
        /// Replicas that are listed.
        replicas: usize,
        /// Slots that there are.
        slots: usize,
    },
    /// The two maps of a placement are not inverse to each other.
    #[error("layer {layer}, slot {slot}: the maps are not inverse to each other: {detail}")]
    NotInverse {
        /// The layer.
        layer: usize,
        /// The slot where they differ.
        slot: usize,
        /// What each of the maps says.
        detail: String,
    },
    /// A rank holds an expert twice although there are enough others to fill its slots.
    #[error(
        "layer {layer}: rank {rank} holds expert {expert} {times} times; replicas belong on different ranks"
    )]
    Duplicate {
        /// The layer.
        layer: usize,
        /// The rank.
        rank: usize,
        /// The expert.
        expert: usize,
        /// How often the rank holds it.
        times: usize,
    },
    /// An expert arrives on a rank, and no live rank holds it now.
    #[error(
        "layer {layer}: expert {expert} has no source for its move to rank {rank}: no live rank holds it; \
         allow reloading from the checkpoint"
    )]
    NoSource {
        /// The layer.
        layer: usize,
        /// The expert.
        expert: usize,
        /// The rank that needs it.
        rank: usize,
    },
    /// The budget does not allow even the moves that keep every expert present.
    #[error(
        "keeping every expert present takes {}, and the budget is {budget}; raise it",
        counted(usize::try_from(*needed).unwrap_or(usize::MAX), unit)
    )]
    Budget {
        /// What is needed.
        needed: u64,
        /// The unit: `move` or `byte`.
        unit: &'static str,
        /// What is allowed.
        budget: u64,
    },
    /// A token's row of a `tid2eid` table, or a recorded route, names an expert that does not
    /// exist.
    #[error("{place}: expert {expert} is not one of the layer's {experts}")]
    ExpertOutOfRange {
        /// Where it stands.
        place: String,
        /// The expert that was named.
        expert: i64,
        /// Experts of the layer.
        experts: usize,
    },
    /// MoE layers differ in their numbers of experts.
    #[error(
        "layers {differing:?} differ from layer {first} in their numbers of experts; plan with the geometry of each layer"
    )]
    NotUniform {
        /// The first MoE layer.
        first: usize,
        /// The layers that differ from it.
        differing: Vec<usize>,
    },
    /// Recorded loads cannot be put together.
    #[error("recorders cannot be merged: {0}")]
    Scope(String),
    /// A JSON document is not of the format that was expected.
    #[error("{field}: {problem}")]
    Format {
        /// The field, or where it stands.
        field: String,
        /// What is wrong, and what was expected.
        problem: String,
    },
    /// A limit of the crate's index types.
    #[error("{what}: {value} is above the limit of {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The largest possible value.
        limit: usize,
    },
}
