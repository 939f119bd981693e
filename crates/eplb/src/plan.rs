//! A plan: where experts go, what that achieves, what it costs, and why.

use serde::{Deserialize, Serialize};

use crate::bound::LowerBound;
use crate::error::Error;
use crate::load::Scope;
use crate::moves::difference;
use crate::placement::Placement;
use crate::problem::Problem;
use crate::validate::{Duplicate, Duplicates};
use crate::wording::counted;

/// What a plan achieves in one layer. Loads are divided by the ranks' speeds, where these differ
/// from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Load of each rank, 0 for one that is not live. Shape `[ranks]`.
    pub rank_loads: Vec<f64>,
    /// The same under what dead ranks left of the current placement; `None` without one, and when
    /// an expert was lost with them.
    pub rank_loads_before: Option<Vec<f64>>,
    /// Mean over the live ranks: `Σw / Σspeed`.
    pub mean: f64,
    /// Largest rank load.
    pub maximum: f64,
    /// The largest of `rank_loads_before`.
    pub maximum_before: Option<f64>,
    /// `mean / maximum`; 1 without load.
    pub balancedness: f64,
    /// What no placement can beat, and why.
    pub lower_bound: LowerBound,
    /// `maximum / lower_bound − 1`.
    pub gap: f64,
    /// Experts that arrive on a rank which did not hold them; 0 without a current placement.
    pub moves: usize,
    /// Bytes of those moves.
    pub bytes: u64,
}

/// The layer that is balanced worst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorstLayer {
    /// The layer.
    pub layer: usize,
    /// Its balancedness.
    pub balancedness: f64,
}

/// A validated placement with everything that is known about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Name of the planner.
    pub planner: &'static str,
    /// Where experts go.
    pub placement: Placement,
    /// What that achieves, layer by layer.
    pub layers: Vec<LayerReport>,
    /// Σ over layers of the mean rank load / Σ of the maximum; 1 without load.
    pub balancedness: f64,
    /// The balancedness under the current placement; `None` without one, and when an expert was
    /// lost with a rank.
    pub balancedness_before: Option<f64>,
    /// The layer that is balanced worst; none without layers.
    pub worst_layer: Option<WorstLayer>,
    /// Σ of the layers' lower bounds.
    pub lower_bound: f64,
    /// Σ of the layers' maxima / Σ of their lower bounds − 1.
    pub gap: f64,
    /// Experts that arrive on a rank which did not hold them; 0 without a current placement.
    pub moves: usize,
    /// Bytes of those moves.
    pub bytes: u64,
    /// The most bytes that each rank holds on top of its slots while one layer is exchanged: its
    /// new experts are staged, since the old ones must stay readable until all copies are made.
    /// Shape `[ranks]`.
    pub peak_extra_bytes: Vec<u64>,
    /// Experts that are more than once on a rank.
    pub duplicates: Vec<Duplicate>,
    /// Why the plan is as it is.
    pub reason: String,
}

impl Plan {
    /// Validates a placement and reports on it.
    ///
    /// # Errors
    ///
    /// As [`Placement::validate`].
    pub fn new(
        planner: &'static str,
        problem: &Problem,
        placement: Placement,
        duplicates: Duplicates,
        reason: &str,
    ) -> Result<Self, Error> {
        let duplicates = placement.validate(problem, duplicates)?;
        let live_speed = problem.cluster.live_speed();
        let mut plan = Self {
            planner,
            layers: Vec::with_capacity(problem.layers()),
            balancedness: 1.0,
            balancedness_before: None,
            worst_layer: None,
            lower_bound: 0.0,
            gap: 0.0,
            moves: 0,
            bytes: 0,
            peak_extra_bytes: vec![0; problem.cluster.ranks()],
            duplicates,
            reason: String::new(),
            placement,
        };
        for (layer, input) in problem.layers.iter().enumerate() {
            let placed = &plan.placement.layers()[layer];
            let speeds = problem.cluster.speeds();
            let rank_loads = placed.rank_times(&input.weights, speeds);
            let maximum = rank_loads.iter().copied().fold(0.0, f64::max);
            let mean = input.weights.iter().sum::<f64>() / live_speed;
            let current = problem.current_layer(layer);
            let rank_loads_before = current
                .and_then(|current| current.survivors(problem.cluster.live()))
                .map(|left| left.rank_times(&input.weights, speeds));
            let change = current
                .map(|current| difference(current, placed))
                .unwrap_or_default();
            let expert_bytes = problem.expert_bytes[layer];
            for (peak, written) in plan.peak_extra_bytes.iter_mut().zip(&change.written) {
                *peak = (*peak).max(expert_bytes.saturating_mul(*written as u64));
            }
            let maximum_before = rank_loads_before
                .as_ref()
                .map(|loads| loads.iter().copied().fold(0.0, f64::max));
            plan.layers.push(LayerReport {
                rank_loads,
                rank_loads_before,
                mean,
                maximum,
                maximum_before,
                balancedness: ratio(mean, maximum),
                lower_bound: input.bound,
                gap: gap(maximum, input.bound.value),
                moves: change.moves,
                bytes: expert_bytes.saturating_mul(change.moves as u64),
            });
        }
        plan.total();
        plan.reason = plan.explain(problem, reason);
        Ok(plan)
    }

    fn total(&mut self) {
        let sum = |value: fn(&LayerReport) -> f64| self.layers.iter().map(value).sum::<f64>();
        let (mean, maximum) = (sum(|layer| layer.mean), sum(|layer| layer.maximum));
        self.balancedness = ratio(mean, maximum);
        self.lower_bound = sum(|layer| layer.lower_bound.value);
        self.gap = gap(maximum, self.lower_bound);
        let before: Option<Vec<f64>> = self
            .layers
            .iter()
            .map(|layer| layer.maximum_before)
            .collect();
        self.balancedness_before = before
            .filter(|before| !before.is_empty())
            .map(|before| ratio(mean, before.iter().sum()));
        self.moves = self.layers.iter().map(|layer| layer.moves).sum();
        self.bytes = self
            .layers
            .iter()
            .fold(0, |bytes, layer| layer.bytes.saturating_add(bytes));
        for (layer, report) in self.layers.iter().enumerate() {
            if self
                .worst_layer
                .is_none_or(|worst| report.balancedness < worst.balancedness)
            {
                self.worst_layer = Some(WorstLayer {
                    layer,
                    balancedness: report.balancedness,
                });
            }
        }
    }

    fn explain(&self, problem: &Problem, reason: &str) -> String {
        if self.layers.is_empty() {
            return format!("{reason}; there are no MoE layers, so there is nothing to place");
        }
        let mut parts = vec![reason.to_owned()];
        let kinds = [
            crate::bound::BoundKind::MeanRankLoad,
            crate::bound::BoundKind::LargestReplica,
            crate::bound::BoundKind::NodeLimit,
        ];
        let bounds: Vec<String> = kinds
            .iter()
            .map(|kind| {
                (
                    kind,
                    self.layers
                        .iter()
                        .filter(|layer| layer.lower_bound.kind == *kind)
                        .count(),
                )
            })
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{kind} in {count}"))
            .collect();
        parts.push(format!(
            "{:.2} % above the lower bound ({} of {})",
            self.gap * 100.0,
            bounds.join(", "),
            counted(self.layers.len(), "layer")
        ));
        if let Some(before) = self.balancedness_before {
            parts.push(format!(
                "balancedness {before:.4} before, {:.4} after",
                self.balancedness
            ));
        } else if problem.current.is_some() {
            parts.push("some experts are on no live rank now".into());
        } else {
            parts.push("no current placement, so nothing is moved".into());
        }
        let hierarchical = (0..self.layers.len())
            .filter(|layer| problem.hierarchical(*layer))
            .count();
        if hierarchical > 0 {
            parts.push(format!(
                "expert groups kept on nodes in {}",
                counted(hierarchical, "layer")
            ));
        }
        let mut why_not: Vec<&str> = problem
            .layers
            .iter()
            .filter_map(|layer| layer.not_hierarchical.as_deref())
            .collect();
        why_not.dedup();
        parts.extend(why_not.first().map(|why| (*why).to_owned()));
        let zero = problem.layers.iter().filter(|layer| layer.zero).count();
        if zero > 0 {
            let outcome = if problem.current.is_some() {
                "left as placed"
            } else {
                "given even replicas"
            };
            let layers = counted(zero, "layer");
            parts.push(format!("{layers} without load {outcome}"));
        }
        if let Scope::Local { rank } = problem.loads.scope() {
            parts.push(format!("loads are those of rank {rank} alone"));
        }
        if !self.duplicates.is_empty() {
            parts.push(match self.duplicates.len() {
                1 => "an expert is more than once on a rank".to_owned(),
                count => format!("{count} times an expert is more than once on a rank"),
            });
        }
        parts.join("; ")
    }
}

pub(crate) fn ratio(mean: f64, maximum: f64) -> f64 {
    // Rounding can put the mean a hair above the maximum.
    if maximum > 0.0 {
        (mean / maximum).min(1.0)
    } else {
        1.0
    }
}

fn gap(maximum: f64, bound: f64) -> f64 {
    if bound > 0.0 {
        (maximum / bound - 1.0).max(0.0)
    } else {
        0.0
    }
}
