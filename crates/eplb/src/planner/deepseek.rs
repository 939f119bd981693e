//! The published algorithm, slot for slot.
//!
//! DeepSeek's expert-parallel load balancer,
//! [`deepseek-ai/EPLB`](https://github.com/deepseek-ai/EPLB) (2025): expert groups are packed on
//! nodes, experts replicated within nodes, replicas packed on ranks. Everything is `f32`, as
//! published. Its sort does not say what happens to equal keys; here they keep the order of their
//! ids.

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

/// Each item, heaviest first, into the pack with the least weight that has room.
fn pack(weights: &[f32], capacities: &[usize], speeds: &[f32]) -> Vec<Vec<usize>> {
    if capacities.iter().all(|capacity| *capacity == 1) {
        return (0..weights.len()).map(|item| vec![item]).collect();
    }
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|left, right| weights[*right].total_cmp(&weights[*left]));
    let mut packs = vec![Vec::new(); capacities.len()];
    let mut totals = vec![0.0_f32; capacities.len()];
    for item in order {
        let mut best: Option<(usize, f32)> = None;
        for pack in 0..packs.len() {
            let time = totals[pack] / speeds[pack];
            if packs[pack].len() < capacities[pack] && best.is_none_or(|(_, least)| time < least) {
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

/// Each item once, then further replicas of the item with the largest share. Returns the item of
/// each replica and the counts.
fn replicate(weights: &[f32], replicas: usize) -> (Vec<usize>, Vec<u32>) {
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
