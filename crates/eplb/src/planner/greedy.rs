//! Counts first, places second, each greedily.

use super::{Planner, layout, repair};
use crate::error::Error;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::search::Search;
use crate::validate::Duplicates;

/// The replica counts with the smallest largest share, then each replica, heaviest first, on the
/// rank that is done first (Graham's longest processing time rule). Two replicas of an expert are
/// never on one rank while ranks suffice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Greedy;

impl Planner for Greedy {
    fn name(&self) -> &'static str {
        "greedy"
    }

    fn plan(&self, problem: &Problem) -> Result<Plan, Error> {
        let layers = (0..problem.layers())
            .map(|layer| match repair::kept_without_load(problem, layer) {
                Some(slots) => slots,
                None => layout::layer(problem, layer, |unit, _| Search::greedy(unit)),
            })
            .collect();
        let placement = layout::placement(problem, layers);
        let reason = "replica counts with the smallest largest share, placed heaviest first";
        Plan::new(self.name(), problem, placement, Duplicates::Refuse, reason)
    }
}
