//! Make mixture-of-experts checkpoints whose redundant experts are constants (MoNE, arXiv 2507.00390):
//! calibrate on a text, rank the experts, replace the least needed, export, and measure what it cost.
#![deny(missing_docs)]

mod error;
mod statistics;

pub use error::PruneError;
pub use statistics::{ExpertStatistics, LayerStatistics, Origin, Statistics};
