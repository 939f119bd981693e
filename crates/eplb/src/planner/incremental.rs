//! From the placement that is there, with as few moves as pay.

use super::repair::repair;
use super::walk::{Point, trajectory};
use super::{Planner, Refined, layout};
use crate::error::Error;
use crate::moves::difference;
use crate::placement::LayerPlacement;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::validate::Duplicates;
use crate::wording::{counted, number};

/// What moves cost, in the unit of the loads: the gain in the largest rank load that one moved
/// expert must bring.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MoveCosts {
    /// Paid by every expert that arrives on a rank which did not hold it.
    pub cross_rank: f64,
    /// Paid on top when a rank of the same node holds the expert.
    pub intra_node: f64,
    /// Paid on top when only ranks of other nodes hold it.
    pub inter_node: f64,
}

impl MoveCosts {
    fn check(&self) -> Result<(), Error> {
        for (name, value) in [
            ("cross-rank", self.cross_rank),
            ("intra-node", self.intra_node),
            ("inter-node", self.inter_node),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::Setting {
                    what: format!("{name} cost"),
                    found: format!("{} is not a finite number of at least 0", number(value)),
                    remedy: "use 0 for moves that are free".into(),
                });
            }
        }
        Ok(())
    }
}

/// Changes the current placement under a budget, and not at all where the gain does not pay.
///
/// In each layer, the rank that is done last is relieved again and again by the change that gains
/// most per move: a replica of one of its experts replaces a replica elsewhere, a lighter expert
/// replaces one of its own replicas, or two ranks trade. The budget goes to the layers and prefixes
/// of changes that gain most for it (the steps of the lower convex hulls of maximum against price,
/// steepest first). Slots that need not move stay. Without a current placement the answer is that
/// of [`Refined`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Incremental {
    /// Most moves, over all layers; any number if `None`.
    pub max_moves: Option<usize>,
    /// Most bytes moved, over all layers; any number if `None`.
    pub max_bytes: Option<u64>,
    /// What moves cost.
    pub costs: MoveCosts,
    /// A layer is left alone unless its largest rank load, costs included, falls by at least this
    /// part.
    pub minimum_gain: f64,
}

impl Default for Incremental {
    /// No budget, no costs, and a minimum gain of 1 %.
    fn default() -> Self {
        Self {
            max_moves: None,
            max_bytes: None,
            costs: MoveCosts::default(),
            minimum_gain: 0.01,
        }
    }
}

impl Planner for Incremental {
    fn name(&self) -> &'static str {
        "incremental"
    }

    fn plan(&self, problem: &Problem) -> Result<Plan, Error> {
        self.costs.check()?;
        if !(0.0..=1.0).contains(&self.minimum_gain) {
            return Err(Error::Setting {
                what: "minimum gain".into(),
                found: format!("{} is not from 0 to 1", number(self.minimum_gain)),
                remedy: "use 0.01 for 1 %".into(),
            });
        }
        let Some(current) = problem.current() else {
            let plan = Refined.plan(problem)?;
            let reason = format!("there is no placement to start from; {}", plan.reason);
            return Ok(Plan {
                planner: self.name(),
                reason,
                ..plan
            });
        };
        let mut choices = Vec::with_capacity(problem.layers());
        for (layer, current) in current.layers().iter().enumerate() {
            choices.push(self.choice(problem, layer, current));
        }
        self.check_forced(problem, &choices)?;
        let stopped = self.spend(problem, &mut choices);
        for choice in &mut choices {
            let gain = choice.points[0].value() - choice.points[choice.chosen].value();
            if gain < self.minimum_gain * choice.points[0].maximum {
                choice.chosen = 0;
            }
        }
        let changed = choices.iter().filter(|choice| choice.chosen > 0).count();
        let forced: usize = choices.iter().map(|choice| choice.points[0].moves).sum();
        let mut reason = match changed {
            0 => format!(
                "no change pays: no layer gains {} % within the budget",
                self.minimum_gain * 100.0
            ),
            _ => format!(
                "{changed} of {} changed from the current placement",
                counted(choices.len(), "layer")
            ),
        };
        if forced > 0 {
            reason += &format!(
                "; {} {} every expert present",
                counted(forced, "move"),
                if forced == 1 { "keeps" } else { "keep" }
            );
        }
        if stopped {
            reason += "; the budget ended it";
        }
        // Duplicates that are there already may stay; none are made.
        let layers = choices
            .into_iter()
            .map(|mut choice| choice.points.swap_remove(choice.chosen).slots)
            .collect();
        Plan::new(
            self.name(),
            problem,
            layout::placement(problem, layers),
            self.duplicates(problem),
            &reason,
        )
    }
}

/// The points that a layer can be taken to, and the one that is chosen.
struct Choice {
    points: Vec<Point>,
    /// The convex hull from point 0, as indices.
    hull: Vec<usize>,
    /// Index of a point.
    chosen: usize,
}

impl Incremental {
    fn duplicates(&self, problem: &Problem) -> Duplicates {
        let twice = |current: &LayerPlacement| {
            (0..current.ranks()).any(|rank| {
                let mut held: Vec<_> = current.rank(rank).flatten().collect();
                held.sort_unstable();
                held.windows(2).any(|pair| pair[0] == pair[1])
            })
        };
        let any = problem
            .current()
            .is_some_and(|current| current.layers().iter().any(twice));
        if any {
            Duplicates::Report
        } else {
            Duplicates::Refuse
        }
    }

    /// The price of a point that is compared across layers: the parts of the budgets that it uses,
    /// or else its moves.
    fn price(&self, problem: &Problem, layer: usize, moves: usize) -> f64 {
        let moves = moves as f64;
        let bytes = problem.expert_bytes[layer] as f64 * moves;
        match (self.max_moves, self.max_bytes) {
            (None, None) => moves,
            (limit_moves, limit_bytes) => {
                limit_moves.map_or(0.0, |limit| moves / (limit.max(1) as f64))
                    + limit_bytes.map_or(0.0, |limit| bytes / (limit.max(1) as f64))
            }
        }
    }

    fn choice(&self, problem: &Problem, layer: usize, current: &LayerPlacement) -> Choice {
        let repaired = repair(problem, layer, current);
        let mut points = vec![Point::new(problem, layer, &self.costs, current, repaired)];
        if !problem.layers[layer].zero {
            let by_bytes = match problem.expert_bytes[layer] {
                0 => usize::MAX,
                bytes => self
                    .max_bytes
                    .map_or(usize::MAX, |limit| (limit / bytes) as usize),
            };
            let most = self.max_moves.unwrap_or(usize::MAX).min(by_bytes);
            trajectory(problem, layer, &self.costs, current, most, &mut points);
        }
        // Lower convex hull of value against price.
        let price = |point: &Point| self.price(problem, layer, point.moves);
        let mut hull = vec![0];
        loop {
            let here = &points[hull[hull.len() - 1]];
            let mut best: Option<(f64, usize)> = None;
            for (index, point) in points.iter().enumerate() {
                let gain = here.value() - point.value();
                if gain <= here.maximum * 1e-9 {
                    continue;
                }
                let slope = gain / (price(point) - price(here)).max(1e-9);
                if best.is_none_or(|(steepest, _)| slope > steepest) {
                    best = Some((slope, index));
                }
            }
            match best {
                Some((_, index)) => hull.push(index),
                None => break,
            }
        }
        Choice {
            points,
            hull,
            chosen: 0,
        }
    }

    /// The moves that keep experts present are made in any case; the budget must allow them.
    fn check_forced(&self, problem: &Problem, choices: &[Choice]) -> Result<(), Error> {
        let moves: usize = choices.iter().map(|choice| choice.points[0].moves).sum();
        let bytes = choices
            .iter()
            .enumerate()
            .map(|(layer, choice)| {
                problem.expert_bytes[layer].saturating_mul(choice.points[0].moves as u64)
            })
            .fold(0, u64::saturating_add);
        if let Some(limit) = self.max_moves.filter(|limit| moves > *limit) {
            return Err(Error::Budget {
                needed: moves as u64,
                unit: "move",
                budget: limit as u64,
            });
        }
        if let Some(limit) = self.max_bytes.filter(|limit| bytes > *limit) {
            return Err(Error::Budget {
                needed: bytes,
                unit: "byte",
                budget: limit,
            });
        }
        Ok(())
    }

    /// Takes the hulls' steps, steepest first, while the budgets last. Says whether a budget
    /// stopped any.
    fn spend(&self, problem: &Problem, choices: &mut [Choice]) -> bool {
        let mut steps: Vec<(f64, usize, usize)> = Vec::new();
        for (layer, choice) in choices.iter().enumerate() {
            for place in 1..choice.hull.len() {
                let (from, to) = (
                    &choice.points[choice.hull[place - 1]],
                    &choice.points[choice.hull[place]],
                );
                let price =
                    self.price(problem, layer, to.moves) - self.price(problem, layer, from.moves);
                steps.push(((from.value() - to.value()) / price.max(1e-9), layer, place));
            }
        }
        // Within a layer slopes fall, so the sort keeps its steps in order; equal slopes are
        // ordered by place.
        steps.sort_by(|left, right| {
            right
                .0
                .total_cmp(&left.0)
                .then((left.1, left.2).cmp(&(right.1, right.2)))
        });
        let mut moves: usize = choices.iter().map(|choice| choice.points[0].moves).sum();
        let mut bytes: u64 = choices
            .iter()
            .enumerate()
            .map(|(layer, choice)| {
                problem.expert_bytes[layer].saturating_mul(choice.points[0].moves as u64)
            })
            .fold(0, u64::saturating_add);
        let mut reached = vec![0; choices.len()];
        let mut stopped = false;
        for (_, layer, place) in steps {
            if reached[layer] + 1 != place {
                continue;
            }
            let choice = &mut choices[layer];
            let (from, to) = (
                choice.points[choice.hull[place - 1]].moves,
                choice.points[choice.hull[place]].moves,
            );
            let moves_after = moves - from + to;
            let each = problem.expert_bytes[layer];
            let bytes_after = bytes
                .saturating_sub(each.saturating_mul(from as u64))
                .saturating_add(each.saturating_mul(to as u64));
            let fits = self.max_moves.is_none_or(|limit| moves_after <= limit)
                && self.max_bytes.is_none_or(|limit| bytes_after <= limit);
            if !fits {
                stopped = true;
                continue;
            }
            reached[layer] = place;
            choice.chosen = choice.hull[place];
            moves = moves_after;
            bytes = bytes_after;
        }
        stopped
    }
}

impl Point {
    pub(super) fn new(
        problem: &Problem,
        layer: usize,
        costs: &MoveCosts,
        current: &LayerPlacement,
        slots: Vec<u32>,
    ) -> Self {
        let input = &problem.layers[layer];
        let placed = LayerPlacement::from_checked(
            std::sync::Arc::clone(&input.offsets),
            slots,
            input.weights.len(),
        );
        let times = placed.rank_times(&input.weights, problem.cluster.speeds());
        Self {
            moves: difference(current, &placed).moves,
            cost: super::walk::cost(problem, costs, current, placed.raw()),
            maximum: times.into_iter().fold(0.0, f64::max),
            slots: placed.raw().to_vec(),
        }
    }

    /// What is weighed: the largest rank load and the cost of getting there.
    fn value(&self) -> f64 {
        self.maximum + self.cost
    }
}
