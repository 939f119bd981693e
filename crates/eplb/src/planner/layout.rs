//! From a layer of a problem to the units that are searched, and from their results back to slots.

use std::sync::Arc;

use crate::placement::{EMPTY, LayerPlacement, Placement};
use crate::problem::{LayerProblem, Problem};
use crate::search::{Search, Unit};

/// The experts and ranks of one unit: a whole layer, or a node and its expert groups.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Experts of the layer. Shape `[experts of the unit]`, ascending.
    pub(crate) experts: Vec<u32>,
    /// Ranks of the cluster that have slots. Shape `[ranks of the unit]`, ascending.
    pub(crate) ranks: Vec<usize>,
    pub(crate) weights: Vec<f64>,
    offsets: Vec<u32>,
    speeds: Vec<f64>,
}

impl Part {
    pub(crate) fn unit(&self) -> Unit<'_> {
        Unit {
            weights: &self.weights,
            offsets: &self.offsets,
            speeds: &self.speeds,
        }
    }

    /// Some rank has more slots than there are experts for it: it must hold one twice.
    pub(crate) fn saturated(&self) -> bool {
        let unit = self.unit();
        (0..unit.ranks()).any(|rank| unit.capacity(rank) > self.experts.len())
    }

    /// The unit of these experts on those of `ranks` that have slots.
    pub(crate) fn new(
        problem: &Problem,
        layer: usize,
        experts: Vec<u32>,
        ranks: std::ops::Range<usize>,
        weights: &[f64],
    ) -> Self {
        let ranks: Vec<usize> = ranks
            .filter(|rank| problem.capacity(layer, *rank) > 0)
            .collect();
        let mut offsets = vec![0];
        for rank in &ranks {
            offsets.push(offsets[offsets.len() - 1] + problem.capacity(layer, *rank) as u32);
        }
        Self {
            weights: experts
                .iter()
                .map(|expert| weights[*expert as usize])
                .collect(),
            speeds: ranks
                .iter()
                .map(|rank| problem.cluster.speeds()[*rank])
                .collect(),
            experts,
            ranks,
            offsets,
        }
    }
}

/// The units of a layer. `weights` replaces the layer's own, for layers without load.
pub(crate) fn parts(problem: &Problem, layer: usize, weights: &[f64]) -> Vec<Part> {
    let input = &problem.layers[layer];
    match &input.group_nodes {
        None => {
            let experts = (0..weights.len() as u32).collect();
            vec![Part::new(
                problem,
                layer,
                experts,
                0..problem.cluster.ranks(),
                weights,
            )]
        }
        Some(group_nodes) => {
            let size = weights.len() / group_nodes.len();
            let per_node = problem.cluster.ranks_per_node();
            (0..problem.cluster.nodes())
                .map(|node| {
                    let experts = (0..weights.len() as u32)
                        .filter(|expert| group_nodes[*expert as usize / size] == node);
                    Part::new(
                        problem,
                        layer,
                        experts.collect(),
                        node * per_node..(node + 1) * per_node,
                        weights,
                    )
                })
                .collect()
        }
    }
}

/// Writes the result of a unit into the layer's slots, each rank's experts in ascending order.
pub(crate) fn write(part: &Part, input: &LayerProblem, local: &[u32], slots: &mut [u32]) {
    let unit = part.unit();
    for (index, rank) in part.ranks.iter().enumerate() {
        let start = input.offsets[*rank] as usize;
        let own = &local[unit.offsets[index] as usize..unit.offsets[index + 1] as usize];
        let target = &mut slots[start..start + own.len()];
        for (slot, expert) in target.iter_mut().zip(own) {
            *slot = part.experts[*expert as usize];
        }
        target.sort_unstable();
    }
}

/// Every rank holds every expert; the slots that are left go to the lightest experts, where a
/// second replica does least harm.
pub(crate) fn saturate(part: &Part) -> Vec<u32> {
    let unit = part.unit();
    let mut lightest: Vec<u32> = (0..part.experts.len() as u32).collect();
    lightest.sort_by_key(|expert| (part.weights[*expert as usize].to_bits(), *expert));
    let mut out = Vec::with_capacity(unit.slots());
    for rank in 0..unit.ranks() {
        let capacity = unit.capacity(rank);
        out.extend((0..part.experts.len() as u32).take(capacity));
        out.extend(
            lightest
                .iter()
                .copied()
                .cycle()
                .take(capacity.saturating_sub(part.experts.len())),
        );
    }
    out
}

/// Plans one layer unit by unit.
pub(crate) fn layer<'p>(
    problem: &'p Problem,
    layer: usize,
    search: impl for<'a> Fn(Unit<'a>, f64) -> Search<'a>,
) -> Vec<u32> {
    let input: &'p LayerProblem = &problem.layers[layer];
    let ones;
    let (weights, bound) = if input.zero {
        // Even replicas: as if every expert had the same load.
        ones = vec![1.0; input.weights.len()];
        (&ones, 0.0)
    } else {
        (&input.weights, input.bound.value)
    };
    let mut slots = vec![EMPTY; input.offsets[input.offsets.len() - 1] as usize];
    for part in parts(problem, layer, weights) {
        if part.saturated() {
            write(&part, input, &saturate(&part), &mut slots);
        } else if input.zero {
            write(&part, input, &Search::greedy(part.unit()).slots, &mut slots);
        } else {
            write(&part, input, &search(part.unit(), bound).slots, &mut slots);
        }
    }
    if let Some(current) = problem.current_layer(layer) {
        align(problem, layer, current, &mut slots);
    }
    slots
}

/// Gives the planned contents of ranks to the ranks that hold most of them already, and leaves
/// experts in their slots.
///
/// Ranks trade contents only where nothing else tells them apart: same speed, same number of slots,
/// same node where groups stay on nodes.
fn align(problem: &Problem, layer: usize, current: &LayerPlacement, slots: &mut [u32]) {
    let cluster = &problem.cluster;
    let ranks: Vec<usize> = (0..cluster.ranks())
        .filter(|rank| problem.capacity(layer, *rank) > 0)
        .collect();
    let kind = |rank: usize| {
        let node = if problem.hierarchical(layer) {
            cluster.node_of(rank)
        } else {
            0
        };
        (
            cluster.speeds()[rank].to_bits(),
            problem.capacity(layer, rank),
            node,
        )
    };
    let planned: Vec<Vec<u32>> = ranks
        .iter()
        .map(|rank| slots[current.range(*rank)].to_vec())
        .collect();
    // Which planned contents each expert is in.
    let mut contents_of = vec![Vec::new(); current.experts()];
    for (contents, experts) in planned.iter().enumerate() {
        for expert in experts {
            contents_of[*expert as usize].push(contents);
        }
    }
    let mut pairs: Vec<(std::cmp::Reverse<usize>, usize, usize)> = Vec::new();
    for (place, rank) in ranks.iter().enumerate() {
        let mut overlap = vec![0_usize; planned.len()];
        for expert in current.raw()[current.range(*rank)]
            .iter()
            .filter(|expert| **expert != EMPTY)
        {
            for contents in &contents_of[*expert as usize] {
                overlap[*contents] += 1;
            }
        }
        for (contents, overlap) in overlap.into_iter().enumerate() {
            if kind(ranks[contents]) == kind(*rank) {
                pairs.push((std::cmp::Reverse(overlap), place, contents));
            }
        }
    }
    pairs.sort_unstable();
    let mut given = vec![false; planned.len()];
    let mut taken = vec![false; planned.len()];
    for (_, place, contents) in pairs {
        if given[contents] || taken[place] {
            continue;
        }
        given[contents] = true;
        taken[place] = true;
        let range = current.range(ranks[place]);
        keep_slots(
            &current.raw()[range.clone()],
            &planned[contents],
            &mut slots[range],
        );
    }
}

/// Puts `planned` into `slots`, each expert where it is in `current` if it is there, the others in
/// ascending order into what is left.
fn keep_slots(current: &[u32], planned: &[u32], slots: &mut [u32]) {
    let mut rest = planned.to_vec();
    for (slot, held) in slots.iter_mut().zip(current) {
        *slot = EMPTY;
        if let Some(place) = rest.iter().position(|expert| expert == held) {
            *slot = rest.remove(place);
        }
    }
    let mut rest = rest.into_iter();
    for slot in slots.iter_mut().filter(|slot| **slot == EMPTY) {
        *slot = rest.next().unwrap_or(EMPTY);
    }
}

pub(crate) fn placement(problem: &Problem, layers: Vec<Vec<u32>>) -> Placement {
    let layers = layers
        .into_iter()
        .zip(&problem.layers)
        .map(|(slots, input)| {
            LayerPlacement::from_checked(Arc::clone(&input.offsets), slots, input.weights.len())
        })
        .collect();
    Placement::new(layers)
}
