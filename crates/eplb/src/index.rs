//! The three index spaces, kept apart by type.
//!
//! A router speaks of *logical* experts. A checkpoint with substituted experts keeps weights only
//! for some of them, the *retained* ones, and only those can be placed. A *slot* is a place for one
//! expert's weights on a rank. In a model without substitution, retained and logical experts are
//! numbered alike, which is why the interchange formats call the map of slots
//! `physical_to_logical_map`.

use serde::{Deserialize, Serialize};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as a `usize`.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

index! {
    /// An expert as the router numbers it.
    LogicalExpert
}
index! {
    /// An expert that has weights: its place among the retained experts of its layer, in ascending
    /// logical order.
    RetainedExpert
}
index! {
    /// A physical slot of a layer, counted over all ranks; the slots of a rank are contiguous.
    Slot
}
