//! Lower bounds: what no placement of the same experts on the same slots can beat.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::apportion::{largest_share, replica_counts};

/// Which of the bounds is the highest, and therefore counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundKind {
    /// `Σw / Σspeed`: some rank needs at least the mean time.
    MeanRankLoad,
    /// The best achievable `max w/r`: the rank with the heaviest replica needs at least that
    /// replica's time.
    LargestReplica,
    /// The best assignment of expert groups to nodes: some node, with its slots and ranks, needs at
    /// least this long.
    NodeLimit,
}

impl std::fmt::Display for BoundKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::MeanRankLoad => "mean rank load",
            Self::LargestReplica => "largest replica",
            Self::NodeLimit => "node limit",
        })
    }
}

/// A lower bound of a layer's largest rank load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LowerBound {
    /// The bound, in the unit of the loads (divided by speeds, where ranks have different ones).
    pub value: f64,
    /// Where it comes from.
    pub kind: BoundKind,
}

/// The live slots of a set of ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Room {
    pub(crate) slots: usize,
    /// Ranks with at least one slot.
    pub(crate) ranks: usize,
    pub(crate) speed: f64,
    pub(crate) fastest: f64,
}

impl Room {
    /// Both bounds of these experts in this room: mean, and largest replica.
    ///
    /// A rank that holds an expert twice carries both shares, so an expert's smallest load per rank
    /// is `w / min(replicas, ranks)`: replicas beyond one per rank do not lower the bound.
    fn bounds(&self, weights: &[f64], counts: &mut Vec<u32>) -> (f64, f64) {
        replica_counts(weights, self.slots, self.ranks, counts);
        let share = largest_share(weights, counts);
        (
            weights.iter().sum::<f64>() / self.speed,
            share / self.fastest,
        )
    }

    pub(crate) fn bound(&self, weights: &[f64]) -> LowerBound {
        let (mean, share) = self.bounds(weights, &mut Vec::new());
        if share > mean {
            LowerBound {
                value: share,
                kind: BoundKind::LargestReplica,
            }
        } else {
            LowerBound {
                value: mean,
                kind: BoundKind::MeanRankLoad,
            }
        }
    }
}

/// Above this many assignments of groups to nodes, they are searched by trades instead of
/// enumerated.
const ENUMERATED: u64 = 50_000;

/// Assigns expert groups to nodes, the same number to each, so that the node that needs longest
/// needs least; and the bound.
///
/// Up to 50 000 assignments all are compared, and the bound is exact in the sense that no placement
/// that keeps groups on nodes beats it. Above, groups are packed heaviest first and traded, and the
/// bound is the weaker one of the heaviest group with the lightest others.
pub(crate) fn assign_groups(
    weights: &[f64],
    groups: usize,
    rooms: &[Room],
) -> (Vec<usize>, LowerBound) {
    let size = weights.len() / groups;
    let per_node = groups / rooms.len();
    let global = total(rooms).bound(weights);
    let alike = rooms.iter().all(|room| *room == rooms[0]);
    let (assignment, value) = if groups <= 64 && assignments(groups, per_node, alike) <= ENUMERATED
    {
        let mut search = Enumeration {
            weights,
            size,
            per_node,
            rooms,
            alike,
            known: BTreeMap::new(),
            best: f64::INFINITY,
            best_masks: Vec::new(),
        };
        search.node(0, full_mask(groups), 0.0, &mut Vec::new());
        let mut assignment = vec![0; groups];
        for (node, mask) in search.best_masks.iter().enumerate() {
            for (group, place) in assignment.iter_mut().enumerate() {
                if mask >> group & 1 == 1 {
                    *place = node;
                }
            }
        }
        (assignment, search.best)
    } else {
        let sums: Vec<f64> = weights
            .chunks_exact(size)
            .map(|group| group.iter().sum())
            .collect();
        (
            trade_groups(&sums, per_node, rooms),
            relaxed(&sums, per_node, rooms),
        )
    };
    if value > global.value * (1.0 + 1e-12) && value.is_finite() {
        (
            assignment,
            LowerBound {
                value,
                kind: BoundKind::NodeLimit,
            },
        )
    } else {
        (assignment, global)
    }
}

fn total(rooms: &[Room]) -> Room {
    Room {
        slots: rooms.iter().map(|room| room.slots).sum(),
        ranks: rooms.iter().map(|room| room.ranks).sum(),
        speed: rooms.iter().map(|room| room.speed).sum(),
        fastest: rooms.iter().map(|room| room.fastest).fold(0.0, f64::max),
    }
}

fn full_mask(groups: usize) -> u64 {
    if groups >= 64 {
        u64::MAX
    } else {
        (1 << groups) - 1
    }
}

/// Number of ways to give each node `per_node` groups; nodes that are alike are not told apart.
/// Saturates.
fn assignments(groups: usize, per_node: usize, alike: bool) -> u64 {
    let mut ways = 1_u64;
    let mut left = groups as u64;
    while left > 0 {
        // With nodes alike, the first group that is left belongs to this node.
        let (from, choose) = if alike {
            (left - 1, per_node as u64 - 1)
        } else {
            (left, per_node as u64)
        };
        let mut binomial = 1_u64;
        for index in 0..choose {
            binomial = binomial.saturating_mul(from - index) / (index + 1);
            if binomial > ENUMERATED {
                return u64::MAX;
            }
        }
        ways = ways.saturating_mul(binomial);
        if ways > ENUMERATED {
            return u64::MAX;
        }
        left -= per_node as u64;
    }
    ways
}

struct Enumeration<'a> {
    weights: &'a [f64],
    size: usize,
    per_node: usize,
    rooms: &'a [Room],
    alike: bool,
    /// Time of a node with a set of groups.
    known: BTreeMap<(usize, u64), f64>,
    best: f64,
    best_masks: Vec<u64>,
}

impl Enumeration<'_> {
    fn value(&mut self, node: usize, mask: u64) -> f64 {
        let node = if self.alike { 0 } else { node };
        if let Some(value) = self.known.get(&(node, mask)) {
            return *value;
        }
        let mut weights = Vec::with_capacity(self.per_node * self.size);
        for (group, chunk) in self.weights.chunks_exact(self.size).enumerate() {
            if mask >> group & 1 == 1 {
                weights.extend_from_slice(chunk);
            }
        }
        let value = self.rooms[node].bound(&weights).value;
        self.known.insert((node, mask), value);
        value
    }

    fn node(&mut self, node: usize, left: u64, so_far: f64, chosen: &mut Vec<u64>) {
        if node == self.rooms.len() {
            self.best = so_far;
            self.best_masks.clone_from(chosen);
            return;
        }
        let lowest = left & left.wrapping_neg();
        let (start, from, choose) = if self.alike {
            (lowest, left & !lowest, self.per_node - 1)
        } else {
            (0, left, self.per_node)
        };
        self.groups(node, left, start, from, choose, so_far, chosen);
    }

    #[expect(clippy::too_many_arguments, reason = "the state of one recursion")]
    fn groups(
        &mut self,
        node: usize,
        left: u64,
        mask: u64,
        from: u64,
        choose: usize,
        so_far: f64,
        chosen: &mut Vec<u64>,
    ) {
        if choose == 0 {
            let value = self.value(node, mask).max(so_far);
            if value < self.best {
                chosen.push(mask);
                self.node(node + 1, left & !mask, value, chosen);
                chosen.pop();
            }
            return;
        }
        let mut candidates = from;
        while candidates.count_ones() as usize >= choose {
            let lowest = candidates & candidates.wrapping_neg();
            candidates &= !lowest;
            self.groups(
                node,
                left,
                mask | lowest,
                candidates,
                choose - 1,
                so_far,
                chosen,
            );
        }
    }
}

fn trade_groups(sums: &[f64], per_node: usize, rooms: &[Room]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by_key(|group| (!sums[*group].to_bits(), *group));
    let mut load = vec![0.0; rooms.len()];
    let mut used = vec![0; rooms.len()];
    let mut assignment = vec![0; sums.len()];
    for group in order {
        let time = |node: usize| (load[node] + sums[group]) / rooms[node].speed;
        let open = (0..rooms.len()).filter(|node| used[*node] < per_node);
        let Some(node) = open.min_by(|left, right| time(*left).total_cmp(&time(*right))) else {
            continue;
        };
        assignment[group] = node;
        load[node] += sums[group];
        used[node] += 1;
    }
    for _ in 0..4 * sums.len() {
        let time = |node: usize, load: &[f64]| load[node] / rooms[node].speed;
        let Some(busy) = (0..rooms.len())
            .max_by(|left, right| time(*left, &load).total_cmp(&time(*right, &load)))
        else {
            break;
        };
        let mut best = time(busy, &load) * (1.0 - 1e-12);
        let mut trade = None;
        for mine in (0..sums.len()).filter(|group| assignment[*group] == busy) {
            for theirs in (0..sums.len()).filter(|group| assignment[*group] != busy) {
                let node = assignment[theirs];
                let difference = sums[mine] - sums[theirs];
                let after = ((load[busy] - difference) / rooms[busy].speed)
                    .max((load[node] + difference) / rooms[node].speed);
                if after < best {
                    best = after;
                    trade = Some((mine, theirs));
                }
            }
        }
        let Some((mine, theirs)) = trade else { break };
        let node = assignment[theirs];
        load[busy] += sums[theirs] - sums[mine];
        load[node] += sums[mine] - sums[theirs];
        assignment.swap(mine, theirs);
    }
    assignment
}

/// The heaviest group, with as light company as there is, on the fastest node.
fn relaxed(sums: &[f64], per_node: usize, rooms: &[Room]) -> f64 {
    let mut sorted = sums.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(heaviest) = sorted.pop() else {
        return 0.0;
    };
    let company: f64 = sorted.iter().take(per_node - 1).sum();
    let speed = rooms.iter().map(|room| room.speed).fold(0.0, f64::max);
    (heaviest + company) / speed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{Generator, Shape};

    fn room(slots: usize, ranks: usize) -> Room {
        Room {
            slots,
            ranks,
            speed: ranks as f64,
            fastest: 1.0,
        }
    }

    #[test]
    fn group_assignment_is_the_best_of_all_permutations() {
        let mut generator = Generator::new(11);
        for rooms in [
            vec![room(8, 4); 3],
            vec![room(8, 4), room(6, 3), room(8, 4)],
        ] {
            for _ in 0..20 {
                let weights = generator.layer(18, Shape::Lognormal { sigma: 1.0 });
                let (assignment, bound) = assign_groups(&weights, 6, &rooms);
                let value = |assignment: &[usize]| {
                    (0..3)
                        .map(|node| {
                            let own: Vec<f64> = (0..18)
                                .filter(|e| assignment[e / 3] == node)
                                .map(|e| weights[e])
                                .collect();
                            rooms[node].bound(&own).value
                        })
                        .fold(0.0, f64::max)
                };
                let mut least = f64::INFINITY;
                for code in 0..3_usize.pow(6) {
                    let other: Vec<usize> =
                        (0..6).map(|group| code / 3_usize.pow(group) % 3).collect();
                    if (0..3).all(|node| other.iter().filter(|place| **place == node).count() == 2)
                    {
                        least = least.min(value(&other));
                    }
                }
                assert_eq!(value(&assignment), least);
                assert_eq!(bound.value, least.max(total(&rooms).bound(&weights).value));
            }
        }
    }

    #[test]
    fn many_groups_are_assigned_evenly_and_bounded_from_below() {
        let mut generator = Generator::new(12);
        let weights = generator.layer(256, Shape::Lognormal { sigma: 1.0 });
        let rooms = vec![room(72, 8); 4];
        let (assignment, bound) = assign_groups(&weights, 32, &rooms);
        for (node, room) in rooms.iter().enumerate() {
            assert_eq!(assignment.iter().filter(|place| **place == node).count(), 8);
            let own: Vec<f64> = (0..256)
                .filter(|e| assignment[e / 8] == node)
                .map(|e| weights[e])
                .collect();
            assert!(room.bound(&own).value <= bound.value * 1.01);
        }
    }
}
