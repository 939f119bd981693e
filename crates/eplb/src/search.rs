//! Experts on the ranks of one unit (a layer, or a node's part of one), with the changes that a search makes to them.

use crate::apportion::replica_counts;

/// Marks a slot that holds nothing yet.
pub(crate) const EMPTY: u32 = u32::MAX;

/// Improvements below this part of a load are rounding, not progress: they would let a search go in circles.
const ROUNDING: f64 = 1e-12;

/// What one unit is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unit<'a> {
    /// Load of each expert. Shape `[experts]`.
    pub(crate) weights: &'a [f64],
    /// First slot of each rank, and the end. Shape `[ranks + 1]`. Capacities differ by at most 1 and are at most the number of experts.
    pub(crate) offsets: &'a [u32],
    /// Speed of each rank. Shape `[ranks]`.
    pub(crate) speeds: &'a [f64],
}

impl Unit<'_> {
    pub(crate) fn ranks(&self) -> usize {
        self.speeds.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.offsets[self.ranks()] as usize
    }

    pub(crate) fn capacity(&self, rank: usize) -> usize {
        (self.offsets[rank + 1] - self.offsets[rank]) as usize
    }

    /// Ranks that have a slot at all: no expert can have more replicas on different ranks.
    pub(crate) fn usable_ranks(&self) -> usize {
        (0..self.ranks())
            .filter(|rank| self.capacity(*rank) > 0)
            .count()
    }
}

/// A change: what it does to the largest load of the ranks it touches, and how to do it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    /// Two slots of different ranks trade their experts.
    Swap { slot: usize, other: usize },
    /// A slot gives up a replica of its expert for one of another expert.
    Replace { slot: usize, expert: u32 },
}

/// A full or partial placement of one unit.
#[derive(Debug, Clone)]
pub(crate) struct Search<'a> {
    pub(crate) unit: Unit<'a>,
    /// Replicas of each expert. Shape `[experts]`.
    pub(crate) counts: Vec<u32>,
    /// Load of one replica of each expert. Shape `[experts]`.
    share: Vec<f64>,
    /// Expert of each slot. Shape `[slots]`.
    pub(crate) slots: Vec<u32>,
    /// Load of each slot. Shape `[slots]`.
    slot_share: Vec<f64>,
    /// Time of each rank: the sum of its slots' loads, divided by its speed. Shape `[ranks]`.
    pub(crate) time: Vec<f64>,
    inverse_speed: Vec<f64>,
    rank_of: Vec<u32>,
    /// One bit per expert and rank.
    holders: Vec<u64>,
    words: usize,
    /// Ranks by ascending time, ties by id.
    order: Vec<u32>,
}

impl<'a> Search<'a> {
    fn empty(unit: Unit<'a>, counts: Vec<u32>) -> Self {
        let share = unit
            .weights
            .iter()
            .zip(&counts)
            .map(|(weight, count)| weight / f64::from(*count))
            .collect();
        let ranks = unit.ranks();
        let words = ranks.div_ceil(64);
        let mut rank_of = Vec::with_capacity(unit.slots());
        for rank in 0..ranks {
            rank_of.extend(std::iter::repeat_n(rank as u32, unit.capacity(rank)));
        }
        Self {
            counts,
            share,
            slots: vec![EMPTY; unit.slots()],
            slot_share: vec![0.0; unit.slots()],
            time: vec![0.0; ranks],
            inverse_speed: unit.speeds.iter().map(|speed| 1.0 / speed).collect(),
            rank_of,
            holders: vec![0; unit.weights.len() * words],
            words,
            order: Vec::new(),
            unit,
        }
    }

    /// The counts that minimise the largest share, packed heaviest first.
    pub(crate) fn greedy(unit: Unit<'a>) -> Self {
        let mut counts = Vec::new();
        replica_counts(unit.weights, unit.slots(), unit.usable_ranks(), &mut counts);
        Self::pack(unit, counts)
    }

    /// Longest processing time first (Graham 1969) under capacities: each replica, heaviest first, goes to the rank that is done
    /// first, has a free slot and does not hold the expert. The counts must sum to the slots and be at most the number of usable ranks.
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

    /// A placement that exists already. Every expert must be in some slot, and no slot may be empty.
    pub(crate) fn from_slots(unit: Unit<'a>, slots: &[u32]) -> Self {
        let mut counts = vec![0; unit.weights.len()];
        for expert in slots {
            counts[*expert as usize] += 1;
        }
        let mut search = Self::empty(unit, counts);
        for (slot, expert) in slots.iter().enumerate() {
            search.put(slot, *expert);
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

    /// Every rank with a free slot holds the expert already: some full rank takes it, and gives one of its own to a rank with a free slot.
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

    pub(crate) fn holds(&self, expert: u32, rank: usize) -> bool {
        self.holders[expert as usize * self.words + rank / 64] >> (rank % 64) & 1 == 1
    }

    fn put(&mut self, slot: usize, expert: u32) {
        let rank = self.rank_of[slot] as usize;
        self.slots[slot] = expert;
        self.slot_share[slot] = self.share[expert as usize];
        self.holders[expert as usize * self.words + rank / 64] |= 1 << (rank % 64);
    }

    fn clear(&mut self, expert: u32, rank: usize) {
        self.holders[expert as usize * self.words + rank / 64] &= !(1 << (rank % 64));
    }

    /// Takes note that a slot of the rank gave the expert up. A placement that was there already may hold it in another slot too.
    fn release(&mut self, expert: u32, rank: usize) {
        if !self.slots[self.slots_of(rank)].contains(&expert) {
            self.clear(expert, rank);
        }
    }

    /// Sums from scratch, so that rounding does not pile up over many changes.
    fn weigh(&mut self, rank: usize) {
        let range = self.unit.offsets[rank] as usize..self.unit.offsets[rank + 1] as usize;
        for slot in range.clone() {
            if self.slots[slot] != EMPTY {
                self.slot_share[slot] = self.share[self.slots[slot] as usize];
            }
        }
        self.time[rank] = self.slot_share[range].iter().sum::<f64>() * self.inverse_speed[rank];
    }

    fn sort_ranks(&mut self) {
        let time = &self.time;
        self.order.clear();
        self.order.extend(0..self.unit.ranks() as u32);
        self.order
            .sort_unstable_by_key(|rank| (time[*rank as usize].to_bits(), *rank));
    }

    /// Restores the order after the times of two ranks changed.
    fn settle(&mut self, first: usize, second: usize) {
        for rank in [first, second] {
            let Some(mut place) = self.order.iter().position(|other| *other == rank as u32) else {
                continue;
            };
            let key = |search: &Self, place: usize| {
                let rank = search.order[place];
                (search.time[rank as usize].to_bits(), rank)
            };
            while place > 0 && key(self, place - 1) > key(self, place) {
                self.order.swap(place - 1, place);
                place -= 1;
            }
            while place + 1 < self.order.len() && key(self, place + 1) < key(self, place) {
                self.order.swap(place, place + 1);
                place += 1;
            }
        }
    }

    pub(crate) fn slots_of(&self, rank: usize) -> std::ops::Range<usize> {
        self.unit.offsets[rank] as usize..self.unit.offsets[rank + 1] as usize
    }

    pub(crate) fn rank_of(&self, slot: usize) -> usize {
        self.rank_of[slot] as usize
    }

    /// The rank that is done last, and when.
    pub(crate) fn last(&self) -> (usize, f64) {
        match self.order.last() {
            Some(rank) => (*rank as usize, self.time[*rank as usize]),
            None => (0, 0.0),
        }
    }

    /// The trade between the last rank and another that leaves the smallest time on the two, if it is below the last rank's now.
    /// Only ranks for which `allowed` is true trade.
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

    /// The replacement that lowers the last rank most without lifting another to its time: a replica of one of the last rank's
    /// experts goes into the slot of an expert that has several.
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

    /// The replacement on the last rank itself that lowers it most: one of its experts that has replicas elsewhere gives way to a replica
    /// of a lighter one.
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

    /// Ranks that hold an expert, ascending.
    pub(crate) fn ranks_of(&self, expert: u32) -> impl Iterator<Item = usize> + '_ {
        let words = &self.holders[expert as usize * self.words..][..self.words];
        words.iter().enumerate().flat_map(|(index, word)| {
            let mut word = *word;
            std::iter::from_fn(move || {
                if word == 0 {
                    return None;
                }
                let bit = word.trailing_zeros() as usize;
                word &= word - 1;
                Some(index * 64 + bit)
            })
        })
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Swap { slot, other } => {
                let (first, second) = (self.rank_of(slot), self.rank_of(other));
                let (left, right) = (self.slots[slot], self.slots[other]);
                self.put(slot, right);
                self.put(other, left);
                self.release(left, first);
                self.release(right, second);
                self.weigh(first);
                self.weigh(second);
                self.settle(first, second);
            }
            Change::Replace { slot, expert } => {
                let losing = self.slots[slot];
                let rank = self.rank_of(slot);
                self.recount(losing, -1);
                self.recount(expert, 1);
                self.put(slot, expert);
                self.release(losing, rank);
                let mut touched: Vec<usize> =
                    self.ranks_of(losing).chain(self.ranks_of(expert)).collect();
                touched.push(rank);
                for rank in touched {
                    self.weigh(rank);
                }
                self.sort_ranks();
            }
        }
    }

    fn recount(&mut self, expert: u32, by: i32) {
        let index = expert as usize;
        self.counts[index] = self.counts[index].saturating_add_signed(by).max(1);
        self.share[index] = self.unit.weights[index] / f64::from(self.counts[index]);
    }

    /// Trades experts away from the rank that is done last until it is done by `target` or no trade helps. Returns the number of trades.
    pub(crate) fn descend(&mut self, target: f64) -> usize {
        let mut trades = 0;
        // Each trade lowers the largest time or the number of ranks that have it, so this ends; the limit keeps its time in bounds.
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
