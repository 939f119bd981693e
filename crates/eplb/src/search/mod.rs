//! Experts on the ranks of one unit (a layer, or a node's part of one), with the changes that a
//! search makes to them.

mod changes;
mod pack;

/// Marks a slot that holds nothing yet.
pub(crate) const EMPTY: u32 = u32::MAX;

/// What one unit is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unit<'a> {
    /// Load of each expert. Shape `[experts]`.
    pub(crate) weights: &'a [f64],
    /// First slot of each rank, and the end. Shape `[ranks + 1]`. Capacities differ by at most 1
    /// and are at most the number of experts.
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

    /// A placement that exists already. Every expert must be in some slot, and no slot may be
    /// empty.
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

    /// Takes note that a slot of the rank gave the expert up. A placement that was there already
    /// may hold it in another slot too.
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
}

#[cfg(test)]
mod tests {
    use super::{Change, Search, Unit};

    /// Three experts, the first of them twice on the first of three ranks.
    fn with_duplicate() -> Search<'static> {
        let unit = Unit {
            weights: &[9.0, 2.0, 1.0],
            offsets: &[0, 2, 4, 6],
            speeds: &[1.0; 3],
        };
        Search::from_slots(unit, &[0, 0, 1, 2, 1, 2])
    }

    #[test]
    fn an_expert_that_was_there_twice_is_still_held_when_one_leaves() {
        let mut search = with_duplicate();
        search.apply(Change::Swap { slot: 0, other: 2 });
        assert!(
            search.holds(0, 0) && search.holds(0, 1) && search.holds(1, 0) && !search.holds(1, 1)
        );
        search.apply(Change::Swap { slot: 1, other: 4 });
        assert!(!search.holds(0, 0) && search.holds(0, 2));
    }

    #[test]
    fn a_replacement_changes_all_ranks_of_both_experts() {
        let mut search = with_duplicate();
        assert_eq!(search.time, [9.0, 1.5, 1.5]);
        search.apply(Change::Replace { slot: 3, expert: 0 });
        // Expert 0 has 3 replicas now, expert 2 only one.
        assert_eq!(search.counts, [3, 2, 1]);
        assert_eq!(search.time, [6.0, 4.0, 2.0]);
        assert_eq!(search.last(), (0, 6.0));
        assert_eq!(search.ranks_of(0).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn a_change_does_what_it_was_valued_for() {
        let unit = Unit {
            weights: &[8.0, 6.0, 3.0, 2.0],
            offsets: &[0, 2, 4, 6],
            speeds: &[1.0, 2.0, 1.0],
        };
        let start = Search::from_slots(unit, &[0, 1, 2, 3, 2, 3]);
        for found in [start.best_swap(|_| true), start.best_replace(|_, _| true)] {
            let (after, change) = found.unwrap_or_else(|| panic!("the first rank can be relieved"));
            let mut next = start.clone();
            next.apply(change);
            assert!(
                (next.last().1 - after).abs() < 1e-12,
                "{change:?}: {after}, {:?}",
                next.time
            );
        }
    }
}
