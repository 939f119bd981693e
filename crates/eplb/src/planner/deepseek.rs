//! The published algorithm, slot for slot.
//!
//! DeepSeek's expert-parallel load balancer,
//! [`deepseek-ai/EPLB`](https://github.com/deepseek-ai/EPLB) (2025): expert groups are packed on
//! nodes, experts replicated within nodes, replicas packed on ranks. Everything is `f32`, as
//! published. Its sort does not say what happens to equal keys; here they keep the order of their
//! ids.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Planner, layout, repair};
use crate::error::Error;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::validate::Duplicates;

/// The published DeepSeek algorithm: hierarchical where groups divide by nodes, else global. It may
/// put an expert twice on a rank, which the plan reports.
///
/// What the published one does not know is added so that nothing changes without it: packs may
/// differ in capacity (uneven slots, ranks that are not live) and in speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeepSeek;

impl Planner for DeepSeek {
    fn name(&self) -> &'static str {
        "deepseek"
    }

    fn plan(&self, problem: &Problem) -> Result<Plan, Error> {
        let layers = (0..problem.layers())
            .map(|layer| match repair::kept_without_load(problem, layer) {
                Some(slots) => slots,
                None if problem.layers[layer].zero => {
                    layout::layer(problem, layer, super::unit::refine)
                }
                None => rebalance(problem, layer),
            })
            .collect();
        let placement = layout::placement(problem, layers);
        let reason = "the published DeepSeek algorithm";
        Plan::new(self.name(), problem, placement, Duplicates::Report, reason)
    }
}

/// A node of the packing: its ranks with slots.
struct Node {
    ranks: Vec<usize>,
    capacities: Vec<usize>,
    speeds: Vec<f32>,
}

fn rebalance(problem: &Problem, layer: usize) -> Vec<u32> {
    let input = &problem.layers[layer];
    let weights: Vec<f32> = input.weights.iter().map(|weight| *weight as f32).collect();
    // With one node the published code still orders experts by group, which decides ties.
    let (groups, node_count) = if problem.cluster.nodes() == 1 {
        (problem.groups(), 1)
    } else if problem.hierarchical(layer) {
        (problem.groups(), problem.cluster.nodes())
    } else {
        (1, 1)
    };
    let per_node = problem.cluster.ranks() / node_count;
    let nodes: Vec<Node> = (0..node_count)
        .map(|node| {
            let ranks: Vec<usize> = (node * per_node..(node + 1) * per_node)
                .filter(|rank| problem.capacity(layer, *rank) > 0)
                .collect();
            Node {
                capacities: ranks
                    .iter()
                    .map(|rank| problem.capacity(layer, *rank))
                    .collect(),
                speeds: ranks
                    .iter()
                    .map(|rank| problem.cluster.speeds()[*rank] as f32)
                    .collect(),
                ranks,
            }
        })
        .collect();

    let size = weights.len() / groups;
    let sums: Vec<f32> = weights
        .chunks_exact(size)
        .map(|group| group.iter().sum())
        .collect();
    let node_speeds: Vec<f32> = nodes
        .iter()
        .map(|node| node.speeds.iter().sum::<f32>() / per_node as f32)
        .collect();
    let packed_groups = pack(&sums, &vec![groups / node_count; node_count], &node_speeds);

    let mut slots = vec![crate::placement::EMPTY; input.offsets[input.offsets.len() - 1] as usize];
    for (node, groups) in nodes.iter().zip(&packed_groups) {
        let experts: Vec<usize> = groups
            .iter()
            .flat_map(|group| group * size..(group + 1) * size)
            .collect();
        let own: Vec<f32> = experts.iter().map(|expert| weights[*expert]).collect();
        let (replicas, counts) = replicate(&own, node.capacities.iter().sum());
        let shares: Vec<f32> = replicas
            .iter()
            .map(|expert| own[*expert] / counts[*expert] as f32)
            .collect();
        for (rank, contents) in node
            .ranks
            .iter()
            .zip(pack(&shares, &node.capacities, &node.speeds))
        {
            let start = input.offsets[*rank] as usize;
            for (slot, replica) in slots[start..].iter_mut().zip(contents) {
                *slot = experts[replicas[replica]] as u32;
            }
        }
    }
    slots
}

/// Each item, heaviest first, into the pack with the least weight that has room; the first of
/// several.
///
/// Weights are not negative, so that times are ordered as their bits are.
fn pack(weights: &[f32], capacities: &[usize], speeds: &[f32]) -> Vec<Vec<usize>> {
    if capacities.iter().all(|capacity| *capacity == 1) {
        return (0..weights.len()).map(|item| vec![item]).collect();
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|left, right| weights[*right].total_cmp(&weights[*left]));
    let mut packs = vec![Vec::new(); capacities.len()];
    let mut totals = vec![0.0_f32; capacities.len()];
    let mut earliest: BinaryHeap<Reverse<(u32, usize)>> = (0..packs.len())
        .filter(|pack| capacities[*pack] > 0)
        .map(|pack| Reverse((0, pack)))
        .collect();
    for item in order {
        let Some(Reverse((_, pack))) = earliest.pop() else {
            break;
        };
        packs[pack].push(item);
        totals[pack] += weights[item];
        if packs[pack].len() < capacities[pack] {
            earliest.push(Reverse(((totals[pack] / speeds[pack]).to_bits(), pack)));
        }
    }
    packs
}

/// Each item once, then further replicas of the item with the largest share, the first of several.
/// Returns the item of each replica and the counts.
///
/// Weights are not negative, so that shares are ordered as their bits are.
fn replicate(weights: &[f32], replicas: usize) -> (Vec<usize>, Vec<u32>) {
    let mut items: Vec<usize> = (0..weights.len()).collect();
    let mut counts = vec![1_u32; weights.len()];
    let shares = weights.iter().enumerate();
    let mut largest: BinaryHeap<(u32, Reverse<usize>)> = shares
        .map(|(item, weight)| (weight.to_bits(), Reverse(item)))
        .collect();
    for _ in weights.len()..replicas {
        let Some((_, Reverse(item))) = largest.pop() else {
            break;
        };
        items.push(item);
        counts[item] += 1;
        largest.push((
            (weights[item] / counts[item] as f32).to_bits(),
            Reverse(item),
        ));
    }
    (items, counts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{pack, replicate};

    /// As published: every pack is looked at for every item.
    fn naive_pack(weights: &[f32], capacities: &[usize], speeds: &[f32]) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..weights.len()).collect();
        order.sort_by(|left, right| weights[*right].total_cmp(&weights[*left]));
        let mut packs = vec![Vec::new(); capacities.len()];
        let mut totals = vec![0.0_f32; capacities.len()];
        for item in order {
            let mut best: Option<(usize, f32)> = None;
            for pack in 0..packs.len() {
                let time = totals[pack] / speeds[pack];
                let room = packs[pack].len() < capacities[pack];
                if room && best.is_none_or(|(_, least)| time < least) {
                    best = Some((pack, time));
                }
            }
            if let Some((pack, _)) = best {
                packs[pack].push(item);
                totals[pack] += weights[item];
            }
        }
        packs
    }

    /// As published: every item is looked at for every replica.
    fn naive_replicate(weights: &[f32], replicas: usize) -> (Vec<usize>, Vec<u32>) {
        let mut items: Vec<usize> = (0..weights.len()).collect();
        let mut counts = vec![1_u32; weights.len()];
        for _ in weights.len()..replicas {
            let mut best = 0;
            for item in 1..weights.len() {
                if weights[item] / counts[item] as f32 > weights[best] / counts[best] as f32 {
                    best = item;
                }
            }
            items.push(best);
            counts[best] += 1;
        }
        (items, counts)
    }

    /// Few different values, so that there are ties, and zeros.
    fn weights() -> impl Strategy<Value = Vec<f32>> {
        let tied = (0..6_u8).prop_map(f32::from);
        prop::collection::vec(prop_oneof![tied, 0.0..1e9_f32], 1..40)
    }

    proptest! {
        #[test]
        fn heaps_choose_as_the_published_loops_do(
            weights in weights(),
            spare in 0..60_usize,
            packs in prop::collection::vec((0..9_usize, prop_oneof![Just(1.0_f32), 0.1..4.0_f32]), 1..12),
        ) {
            let replicas = weights.len() + spare;
            let expected = naive_replicate(&weights, replicas);
            prop_assert_eq!(replicate(&weights, replicas), expected.clone());
            let (items, counts) = expected;
            let shares: Vec<f32> =
                items.iter().map(|item| weights[*item] / counts[*item] as f32).collect();
            // Packs of one item each are a case of their own.
            let capacities: Vec<usize> = packs.iter().map(|(room, _)| room + 2).collect();
            let speeds: Vec<f32> = packs.iter().map(|(_, speed)| *speed).collect();
            prop_assert_eq!(
                pack(&shares, &capacities, &speeds),
                naive_pack(&shares, &capacities, &speeds)
            );
        }
    }
}
