//! A current placement made complete again: every expert present, every live slot used.

use crate::placement::{EMPTY, LayerPlacement};
use crate::problem::Problem;

/// For a layer without load: its current placement, repaired where ranks died or came back. `None`
/// if there is load or no placement.
pub(crate) fn kept_without_load(problem: &Problem, layer: usize) -> Option<Vec<u32>> {
    let current = problem
        .current_layer(layer)
        .filter(|_| problem.layers[layer].zero)?;
    Some(repair(problem, layer, current))
}

/// Empties the slots of dead ranks, gives experts that were only there a slot, and fills the slots
/// of ranks that came back. Nothing else changes.
pub(crate) fn repair(problem: &Problem, layer: usize, current: &LayerPlacement) -> Vec<u32> {
    let mut slots = current.raw().to_vec();
    for rank in 0..current.ranks() {
        if !problem.cluster.live()[rank] {
            slots[current.range(rank)].fill(EMPTY);
        }
    }
    let weights = &problem.layers[layer].weights;
    let mut repair = Repair {
        problem,
        layer,
        current,
        weights,
        counts: vec![0; weights.len()],
        slots,
    };
    for expert in &repair.slots {
        if *expert != EMPTY {
            repair.counts[*expert as usize] += 1;
        }
    }
    let mut lost: Vec<u32> = (0..weights.len() as u32)
        .filter(|expert| repair.counts[*expert as usize] == 0)
        .collect();
    lost.sort_by_key(|expert| (!weights[*expert as usize].to_bits(), *expert));
    for expert in lost {
        repair.recover(expert);
    }
    repair.fill();
    repair.slots
}

struct Repair<'a> {
    problem: &'a Problem,
    layer: usize,
    current: &'a LayerPlacement,
    weights: &'a [f64],
    counts: Vec<u32>,
    slots: Vec<u32>,
}

impl Repair<'_> {
    fn live_slots(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        (0..self.current.ranks())
            .filter(|rank| self.problem.capacity(self.layer, *rank) > 0)
            .flat_map(|rank| self.current.range(rank).map(move |slot| (rank, slot)))
    }

    fn share(&self, expert: u32) -> f64 {
        self.weights[expert as usize] / f64::from(self.counts[expert as usize].max(1))
    }

    fn time(&self, rank: usize) -> f64 {
        let held = self.slots[self.current.range(rank)]
            .iter()
            .filter(|expert| **expert != EMPTY);
        held.map(|expert| self.share(*expert)).sum::<f64>() / self.problem.cluster.speeds()[rank]
    }

    /// An empty slot on the rank that is done first; without one, the replica that is missed least.
    fn recover(&mut self, expert: u32) {
        let empty = self
            .live_slots()
            .filter(|(_, slot)| self.slots[*slot] == EMPTY)
            .map(|(rank, slot)| (self.time(rank).to_bits(), slot))
            .min();
        let slot = empty.or_else(|| {
            self.live_slots()
                .filter(|(_, slot)| self.counts[self.slots[*slot] as usize] > 1)
                .map(|(_, slot)| {
                    let spare = self.slots[slot];
                    let count = f64::from(self.counts[spare as usize]);
                    let lift = self.weights[spare as usize] / (count - 1.0) - self.share(spare);
                    (lift.to_bits(), slot)
                })
                .min()
        });
        if let Some((_, slot)) = slot {
            self.set(slot, expert);
        }
    }

    /// The expert with the largest share goes into each slot that is still empty; on a rank that
    /// holds all of them, the lightest.
    fn fill(&mut self) {
        let empty: Vec<(usize, usize)> = self
            .live_slots()
            .filter(|(_, slot)| self.slots[*slot] == EMPTY)
            .collect();
        for (rank, slot) in empty {
            let held = &self.slots[self.current.range(rank)];
            let heaviest = (0..self.weights.len() as u32)
                .filter(|expert| !held.contains(expert))
                .min_by_key(|expert| (!self.share(*expert).to_bits(), *expert));
            let lightest = || {
                (0..self.weights.len() as u32)
                    .min_by_key(|expert| (self.share(*expert).to_bits(), *expert))
            };
            if let Some(expert) = heaviest.or_else(lightest) {
                self.set(slot, expert);
            }
        }
    }

    fn set(&mut self, slot: usize, expert: u32) {
        let before = self.slots[slot];
        if before != EMPTY {
            self.counts[before as usize] -= 1;
        }
        self.counts[expert as usize] += 1;
        self.slots[slot] = expert;
    }
}
