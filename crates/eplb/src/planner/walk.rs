//! One layer's way from its current placement towards balance, move by move.

use super::incremental::MoveCosts;
use super::layout::{self, Part};
use super::unit;
use crate::placement::{EMPTY, LayerPlacement};
use crate::problem::Problem;
use crate::search::{Change, Search};

/// The way ends within this part of the bound.
const TOLERANCE: f64 = 2.5e-3;

/// A placement that a layer can be taken to.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) moves: usize,
    /// Cost of the moves, in the unit of the loads.
    pub(crate) cost: f64,
    /// Largest rank load.
    pub(crate) maximum: f64,
    pub(crate) slots: Vec<u32>,
}

/// Cost of the experts that arrive on ranks which did not hold them.
pub(crate) fn cost(
    problem: &Problem,
    costs: &MoveCosts,
    current: &LayerPlacement,
    slots: &[u32],
) -> f64 {
    if *costs == MoveCosts::default() {
        return 0.0;
    }
    let mut sum = 0.0;
    for rank in 0..current.ranks() {
        let held = &current.raw()[current.range(rank)];
        for (slot, expert) in current.range(rank).map(|slot| (slot, slots[slot])) {
            let earlier = &slots[current.range(rank).start..slot];
            if expert != EMPTY && !held.contains(&expert) && !earlier.contains(&expert) {
                sum += costs.cross_rank;
                sum += if near(problem, current, rank, expert) {
                    costs.intra_node
                } else {
                    costs.inter_node
                };
            }
        }
    }
    sum
}

/// A live rank of the same node holds the expert.
fn near(problem: &Problem, current: &LayerPlacement, rank: usize, expert: u32) -> bool {
    let node = problem.cluster.node_of(rank);
    current.replica_slots(expert as usize).iter().any(|slot| {
        let holder = current.rank_of(crate::index::Slot(*slot));
        holder.is_some_and(|holder| {
            problem.cluster.live()[holder] && problem.cluster.node_of(holder) == node
        })
    })
}

/// A unit on its way, with the slots of the layer that are its own.
struct Walker<'a> {
    part: &'a Part,
    /// Layer slot of each slot of the unit.
    slots: Vec<usize>,
    search: Search<'a>,
}

/// Appends the points of the way from `points[0]`, each with a lower maximum than the one before,
/// none with more than `most` moves.
pub(crate) fn trajectory(
    problem: &Problem,
    layer: usize,
    costs: &MoveCosts,
    current: &LayerPlacement,
    most: usize,
    points: &mut Vec<Point>,
) {
    let target = problem.layers[layer].bound.value * (1.0 + TOLERANCE);
    let parts = parts_of(problem, layer, &points[0].slots);
    if parts.iter().any(Part::saturated) {
        return;
    }
    let mut walkers: Vec<Walker<'_>> = parts
        .iter()
        .map(|part| Walker::new(problem, layer, part, &points[0].slots))
        .collect();
    let mut here = points[0].clone();
    // Every step lowers the largest load or the number of ranks that have it. Where an expert is
    // twice on a rank, steps are estimates; the limit ends a way that goes in circles.
    for _ in 0..4 * here.slots.len() {
        let busiest = (0..walkers.len()).max_by(|left, right| {
            walkers[*left]
                .search
                .last()
                .1
                .total_cmp(&walkers[*right].search.last().1)
        });
        let Some(busiest) = busiest.filter(|unit| walkers[*unit].search.last().1 > target) else {
            break;
        };
        let step = walkers[busiest].step(problem, costs, current, &here, most, target);
        let Some((search, moves, cost)) = step else {
            break;
        };
        walkers[busiest].search = search;
        let slots = walkers[busiest].written(&here.slots);
        let maximum = walkers
            .iter()
            .map(|walker| walker.search.last().1)
            .fold(0.0, f64::max);
        here = Point {
            moves,
            cost,
            maximum,
            slots,
        };
        if here.maximum < points[points.len() - 1].maximum {
            points.push(here.clone());
        }
    }
    // Where single steps are stuck, a plan from scratch may still be affordable.
    if points[points.len() - 1].maximum > target * 1.01 {
        let slots = layout::layer(problem, layer, unit::refine);
        let fresh = Point::new(problem, layer, costs, current, slots);
        if fresh.moves <= most && fresh.maximum < points[points.len() - 1].maximum {
            points.push(fresh);
        }
    }
}

/// The units that keep what the placement keeps: nodes, if each expert group is on one node and the
/// nodes have equally many; else the whole layer.
fn parts_of(problem: &Problem, layer: usize, slots: &[u32]) -> Vec<Part> {
    let weights = &problem.layers[layer].weights;
    let all = || {
        let experts = (0..weights.len() as u32).collect();
        vec![Part::new(
            problem,
            layer,
            experts,
            0..problem.cluster.ranks(),
            weights,
        )]
    };
    if !problem.hierarchical(layer) {
        return all();
    }
    let (nodes, per_node) = (problem.cluster.nodes(), problem.cluster.ranks_per_node());
    let size = weights.len() / problem.groups();
    let mut node_of_group = vec![None; problem.groups()];
    let offsets = &problem.layers[layer].offsets;
    for rank in 0..problem.cluster.ranks() {
        let node = problem.cluster.node_of(rank);
        for expert in &slots[offsets[rank] as usize..offsets[rank + 1] as usize] {
            if *expert != EMPTY {
                let known = &mut node_of_group[*expert as usize / size];
                if *known.get_or_insert(node) != node {
                    return all();
                }
            }
        }
    }
    let own = |node: usize| -> Vec<u32> {
        (0..weights.len() as u32)
            .filter(|expert| node_of_group[*expert as usize / size] == Some(node))
            .collect()
    };
    if (0..nodes).any(|node| own(node).len() != weights.len() / nodes) {
        return all();
    }
    (0..nodes)
        .map(|node| {
            Part::new(
                problem,
                layer,
                own(node),
                node * per_node..(node + 1) * per_node,
                weights,
            )
        })
        .collect()
}

impl<'a> Walker<'a> {
    fn new(problem: &Problem, layer: usize, part: &'a Part, slots: &[u32]) -> Self {
        let offsets = &problem.layers[layer].offsets;
        let own: Vec<usize> = part
            .ranks
            .iter()
            .flat_map(|rank| offsets[*rank] as usize..offsets[rank + 1] as usize)
            .collect();
        let local: Vec<u32> = own
            .iter()
            .map(|slot| {
                part.experts
                    .partition_point(|expert| *expert < slots[*slot]) as u32
            })
            .collect();
        Self {
            part,
            slots: own,
            search: Search::from_slots(part.unit(), &local),
        }
    }

    fn written(&self, slots: &[u32]) -> Vec<u32> {
        self.written_by(&self.search, slots)
    }

    fn written_by(&self, search: &Search<'_>, slots: &[u32]) -> Vec<u32> {
        let mut out = slots.to_vec();
        for (slot, expert) in self.slots.iter().zip(&search.slots) {
            out[*slot] = self.part.experts[*expert as usize];
        }
        out
    }

    /// The change that gains most per move (or per cost, where moves have one) for the unit's last
    /// rank.
    fn step(
        &self,
        problem: &Problem,
        costs: &MoveCosts,
        current: &LayerPlacement,
        here: &Point,
        most: usize,
        target: f64,
    ) -> Option<(Search<'a>, usize, f64)> {
        let search = &self.search;
        let (busy, now) = search.last();
        let cluster = &problem.cluster;
        let rank = |local: usize| self.part.ranks[local];
        let mut options: Vec<(f64, Change)> = Vec::with_capacity(6);
        options.extend(search.best_replace(|_, _| true));
        options.extend(search.best_relief(|_, _| true));
        options.extend(search.best_swap(|_| true));
        if costs.inter_node > costs.intra_node && cluster.nodes() > 1 {
            let arrives_near = |slot: usize, expert: u32| {
                near(
                    problem,
                    current,
                    rank(search.rank_of(slot)),
                    self.part.experts[expert as usize],
                )
            };
            options.extend(search.best_replace(arrives_near));
            options.extend(search.best_relief(arrives_near));
            options
                .extend(search.best_swap(|other| {
                    cluster.node_of(rank(other)) == cluster.node_of(rank(busy))
                }));
        }
        let mut best: Option<(f64, Search<'a>, usize, f64)> = None;
        for (after, change) in options {
            let mut next = search.clone();
            next.apply(change);
            let slots = self.written_by(&next, &here.slots);
            let moves = moves(current, &slots);
            if moves > most {
                continue;
            }
            let cost = cost(problem, costs, current, &slots);
            let paid = if *costs == MoveCosts::default() {
                moves as f64 - here.moves as f64
            } else {
                cost - here.cost + 1e-6 * now
            };
            // A change that takes an earlier move back is almost free.
            let floor = if *costs == MoveCosts::default() {
                0.1
            } else {
                1e-7 * now
            };
            let score = (now - after.max(target)) / paid.max(floor);
            if best.as_ref().is_none_or(|(highest, ..)| score > *highest) {
                best = Some((score, next, moves, cost));
            }
        }
        best.map(|(_, search, moves, cost)| (search, moves, cost))
    }
}

fn moves(current: &LayerPlacement, slots: &[u32]) -> usize {
    (0..current.ranks())
        .map(|rank| {
            let range = current.range(rank);
            let held = &current.raw()[range.clone()];
            let arrives = |slot: &usize| {
                let expert = slots[*slot];
                expert != EMPTY
                    && !held.contains(&expert)
                    && !slots[range.start..*slot].contains(&expert)
            };
            range.clone().filter(arrives).count()
        })
        .sum()
}
