//! Packing replicas on ranks from nothing.

use super::{EMPTY, Search, Unit};
use crate::apportion::replica_counts;

impl<'a> Search<'a> {
    /// The counts that minimise the largest share, packed heaviest first.
    pub(crate) fn greedy(unit: Unit<'a>) -> Self {
        let mut counts = Vec::new();
        replica_counts(unit.weights, unit.slots(), unit.usable_ranks(), &mut counts);
        Self::pack(unit, counts)
    }

    /// Longest processing time first (Graham 1969) under capacities: each replica, heaviest first,
    /// goes to the rank that is done first, has a free slot and does not hold the expert. The
    /// counts must sum to the slots and be at most the number of usable ranks.
    pub(crate) fn pack(unit: Unit<'a>, counts: Vec<u32>) -> Self {
        let mut search = Self::empty(unit, counts);
        let mut by_share: Vec<(u64, u32)> = search
            .share
            .iter()
            .enumerate()
            .map(|(expert, share)| (!share.to_bits(), expert as u32))
            .collect();
        by_share.sort_unstable();
        let mut used = vec![0_u32; unit.ranks()];
        let mut scan: Vec<f64> = (0..unit.ranks())
            .map(|rank| {
                if unit.capacity(rank) > 0 {
                    0.0
                } else {
                    f64::INFINITY
                }
            })
            .collect();
        let equal_speeds = unit.speeds.iter().all(|speed| *speed == unit.speeds[0]);
        for (_, expert) in by_share {
            let share = search.share[expert as usize];
            for _ in 0..search.counts[expert as usize] {
                let quick = if equal_speeds {
                    first_minimum(&scan)
                } else {
                    usize::MAX
                };
                let rank = if quick != usize::MAX
                    && scan[quick].is_finite()
                    && !search.holds(expert, quick)
                {
                    Some(quick)
                } else {
                    search.earliest(expert, share, &scan)
                };
                let rank = match rank {
                    Some(rank) => rank,
                    None => match search.make_room(expert, &mut used, &mut scan) {
                        Some(rank) => rank,
                        None => continue,
                    },
                };
                let slot = unit.offsets[rank] + used[rank];
                used[rank] += 1;
                search.put(slot as usize, expert);
                search.time[rank] += share * search.inverse_speed[rank];
                scan[rank] = if (used[rank] as usize) < unit.capacity(rank) {
                    search.time[rank]
                } else {
                    f64::INFINITY
                };
            }
        }
        for rank in 0..unit.ranks() {
            search.weigh(rank);
        }
        search.sort_ranks();
        search
    }

    fn earliest(&self, expert: u32, share: f64, scan: &[f64]) -> Option<usize> {
        let mut best = None;
        let mut best_time = f64::INFINITY;
        for (rank, start) in scan.iter().enumerate() {
            if start.is_finite() && !self.holds(expert, rank) {
                let time = start + share * self.inverse_speed[rank];
                if time < best_time {
                    best_time = time;
                    best = Some(rank);
                }
            }
        }
        best
    }

    /// Every rank with a free slot holds the expert already: some full rank takes it, and gives one
    /// of its own to a rank with a free slot.
    fn make_room(&mut self, expert: u32, used: &mut [u32], scan: &mut [f64]) -> Option<usize> {
        for full in 0..self.unit.ranks() {
            if self.holds(expert, full) || self.unit.capacity(full) == 0 {
                continue;
            }
            for free in 0..self.unit.ranks() {
                if !scan[free].is_finite() {
                    continue;
                }
                let first = self.unit.offsets[full] as usize;
                let last = first + used[full] as usize - 1;
                for slot in (first..=last).rev() {
                    let moved = self.slots[slot];
                    if self.holds(moved, free) {
                        continue;
                    }
                    let share = self.share[moved as usize];
                    self.clear(moved, full);
                    self.slots[slot] = self.slots[last];
                    self.slots[last] = EMPTY;
                    self.time[full] -= share * self.inverse_speed[full];
                    used[full] -= 1;
                    let target = self.unit.offsets[free] + used[free];
                    self.put(target as usize, moved);
                    used[free] += 1;
                    self.time[free] += share * self.inverse_speed[free];
                    let is_full = used[free] as usize == self.unit.capacity(free);
                    scan[free] = if is_full {
                        f64::INFINITY
                    } else {
                        self.time[free]
                    };
                    return Some(full);
                }
            }
        }
        None
    }
}

fn first_minimum(values: &[f64]) -> usize {
    let mut best = f64::INFINITY;
    let mut place = usize::MAX;
    for (index, value) in values.iter().enumerate() {
        if *value < best {
            best = *value;
            place = index;
        }
    }
    place
}
