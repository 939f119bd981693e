//! The planners, behind one trait.

mod deepseek;
mod greedy;
mod incremental;
mod layout;
mod refined;
mod repair;
mod unit;
mod walk;

pub use deepseek::DeepSeek;
pub use greedy::Greedy;
pub use incremental::{Incremental, MoveCosts};
pub use refined::Refined;

use crate::error::Error;
use crate::plan::Plan;
use crate::problem::Problem;

/// Decides where expert replicas go.
///
/// Every planner takes the same input and returns a validated plan, and the same input always gives
/// the same plan: ties go to the lowest id, and searches are bounded by counted work, not by time.
pub trait Planner {
    /// The planner's name, as in a plan and on the command line.
    fn name(&self) -> &'static str;

    /// Plans all layers.
    ///
    /// # Errors
    ///
    /// When the result cannot be valid: an expert that no live rank holds would have to move, or a
    /// budget is below what is needed to keep every expert present.
    fn plan(&self, problem: &Problem) -> Result<Plan, Error>;
}
