//! Which change relieves the rank that is done last most.

use super::{Change, Search};

/// Improvements below this part of a load are rounding, not progress: they would let a search go in
/// circles.
const ROUNDING: f64 = 1e-12;

impl Search<'_> {
    /// The trade between the last rank and another that leaves the smallest time on the two, if it
    /// is below the last rank's now. Only ranks for which `allowed` is true trade.
    pub(crate) fn best_swap(&self, allowed: impl Fn(usize) -> bool) -> Option<(f64, Change)> {
        let (busy, now) = self.last();
        let mut best = now * (1.0 - ROUNDING);
        let mut found = None;
        let busy_inverse = self.inverse_speed[busy];
        let busy_speed = self.unit.speeds[busy];
        let busy_slots = self.slots_of(busy);
        for &other in &self.order {
            let other = other as usize;
            let other_time = self.time[other];
            // No trade can do better than to level the two.
            let level = (now * busy_speed + other_time * self.unit.speeds[other])
                / (busy_speed + self.unit.speeds[other]);
            if other == busy || level >= best || !allowed(other) {
                continue;
            }
            let other_inverse = self.inverse_speed[other];
            let first = self.unit.offsets[other] as usize;
            let other_shares = &self.slot_share[self.slots_of(other)];
            for slot in busy_slots.clone() {
                let share = self.slot_share[slot];
                for (index, &other_share) in other_shares.iter().enumerate() {
                    let difference = share - other_share;
                    let busy_after = now - difference * busy_inverse;
                    let other_after = other_time + difference * other_inverse;
                    let after = if busy_after > other_after {
                        busy_after
                    } else {
                        other_after
                    };
                    if after < best {
                        let partner = first + index;
                        if !self.holds(self.slots[slot], other)
                            && !self.holds(self.slots[partner], busy)
                        {
                            best = after;
                            found = Some(Change::Swap {
                                slot,
                                other: partner,
                            });
                        }
                    }
                }
            }
        }
        found.map(|change| (best, change))
    }

    /// The replacement that lowers the last rank most without lifting another to its time: a
    /// replica of one of the last rank's experts goes into the slot of an expert that has several.
    pub(crate) fn best_replace(
        &self,
        allowed: impl Fn(usize, u32) -> bool,
    ) -> Option<(f64, Change)> {
        let (busy, now) = self.last();
        let mut best = now * (1.0 - ROUNDING);
        let mut found = None;
        let usable = self.unit.usable_ranks();
        for &gaining in &self.slots[self.slots_of(busy)] {
            if self.counts[gaining as usize] as usize >= usable {
                continue;
            }
            for slot in 0..self.slots.len() {
                let losing = self.slots[slot];
                let rank = self.rank_of(slot);
                if self.counts[losing as usize] < 2
                    || losing == gaining
                    || self.holds(gaining, rank)
                {
                    continue;
                }
                if let Some(after) = self.after_replace(slot, gaining, best)
                    && allowed(slot, gaining)
                {
                    best = after;
                    found = Some(Change::Replace {
                        slot,
                        expert: gaining,
                    });
                }
            }
        }
        found.map(|change| (best, change))
    }

    /// The replacement on the last rank itself that lowers it most: one of its experts that has
    /// replicas elsewhere gives way to a replica of a lighter one.
    pub(crate) fn best_relief(
        &self,
        allowed: impl Fn(usize, u32) -> bool,
    ) -> Option<(f64, Change)> {
        let (busy, now) = self.last();
        let mut best = now * (1.0 - ROUNDING);
        let mut found = None;
        let usable = self.unit.usable_ranks();
        for slot in self.slots_of(busy) {
            if self.counts[self.slots[slot] as usize] < 2 {
                continue;
            }
            for gaining in 0..self.unit.weights.len() as u32 {
                if self.counts[gaining as usize] as usize >= usable || self.holds(gaining, busy) {
                    continue;
                }
                if let Some(after) = self.after_replace(slot, gaining, best)
                    && allowed(slot, gaining)
                {
                    best = after;
                    found = Some(Change::Replace {
                        slot,
                        expert: gaining,
                    });
                }
            }
        }
        found.map(|change| (best, change))
    }

    /// The largest time among the ranks that the replacement touches, if it stays below `limit`.
    pub(crate) fn after_replace(&self, slot: usize, gaining: u32, limit: f64) -> Option<f64> {
        let (busy, now) = self.last();
        let losing = self.slots[slot];
        let rank = self.rank_of(slot);
        let gaining_share =
            self.unit.weights[gaining as usize] / f64::from(self.counts[gaining as usize] + 1);
        let losing_share =
            self.unit.weights[losing as usize] / f64::from(self.counts[losing as usize] - 1);
        let relief = self.share[gaining as usize] - gaining_share;
        let lift = losing_share - self.share[losing as usize];
        let mut after: f64 = self.time[rank]
            + (gaining_share - self.share[losing as usize]) * self.inverse_speed[rank];
        if after >= limit {
            return None;
        }
        if rank != busy {
            let mut on_busy = now;
            if self.holds(gaining, busy) {
                on_busy -= relief * self.inverse_speed[busy];
            }
            if self.holds(losing, busy) {
                on_busy += lift * self.inverse_speed[busy];
            }
            after = after.max(on_busy);
        }
        for other in self.ranks_of(losing) {
            if other != rank {
                let mut time = self.time[other] + lift * self.inverse_speed[other];
                if self.holds(gaining, other) {
                    time -= relief * self.inverse_speed[other];
                }
                after = after.max(time);
            }
            if after >= limit {
                return None;
            }
        }
        Some(after)
    }

    /// Trades experts away from the rank that is done last until it is done by `target` or no trade
    /// helps. Returns the number of trades.
    pub(crate) fn descend(&mut self, target: f64) -> usize {
        let mut trades = 0;
        // Each trade lowers the largest time or the number of ranks that have it, so this ends; the
        // limit keeps its time in bounds.
        let limit = 16 * self.slots.len() + 64;
        while trades < limit && self.last().1 > target {
            let Some((_, change)) = self.best_swap(|_| true) else {
                break;
            };
            self.apply(change);
            trades += 1;
        }
        trades
    }
}
