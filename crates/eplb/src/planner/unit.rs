//! The searches that the planners run on one unit: counts, places, and both together.

use crate::search::{Change, Search, Unit};
use crate::synthetic::Generator;

/// Trades stop at a maximum within this part of the bound: measured loads are not known this well.
const TOLERANCE: f64 = 2.5e-4;

/// Within this part of the bound, other count vectors are not tried: they cost a hundred times what
/// trades cost.
const CLOSE: f64 = 1e-3;

/// Work spent on changing replica counts in one unit, in packed slots times ranks. Counted, not
/// timed, so that plans do not depend on the machine.
const EFFORT: usize = 1_000_000;

/// Largest number of count vectors that one climb tries in a unit, however small it is.
const ATTEMPTS: usize = 2000;

/// Joint choice of replica counts and places.
///
/// 1. Counts that minimise the largest share, packed heaviest first, then trades of slots away from
///    the rank that is done last.
/// 2. Where trades do not reach `bound`: replicas move from one expert to another in place, as long
///    as that helps.
/// 3. Where that does not either: other count vectors, one replica exchanged at a time, each packed
///    and traded from scratch. This is needed when the counts with the smallest largest share
///    cannot be packed well (one heavy share more than there are ranks, say).
/// 4. Such a climb cannot cross a plateau (two pairs of heavy shares, of which one exchange parts
///    only one): a random walk, seeded, takes over. On small units it finds the optimum; the tests
///    compare it with exhaustive search.
pub(crate) fn refine(unit: Unit<'_>, bound: f64) -> Search<'_> {
    let mut best = Search::greedy(unit);
    polish(&mut best, bound * (1.0 + TOLERANCE));
    if best.last().1 > bound * (1.0 + CLOSE) && unit.slots() > unit.weights.len() {
        best = exchange_counts(best, bound);
        if best.last().1 > bound * (1.0 + CLOSE) {
            best = wander(best, bound);
        }
    }
    best
}

/// Iterated local search (Lourenço, Martin and Stützle 2003): a few random changes, then trades
/// again; a somewhat later last rank is accepted, so that the walk leaves a local optimum. The
/// random source is seeded: the same input always gives the same plan.
fn wander<'a>(start: Search<'a>, bound: f64) -> Search<'a> {
    let unit = start.unit;
    let mut random = Generator::new(0x65_70_6c_62);
    let mut best = start.clone();
    let mut here = start;
    for _ in 0..attempts(unit) {
        let mut other = here.clone();
        for _ in 0..1 + random.below(4) {
            let slot = random.below(unit.slots());
            let partner = random.below(unit.slots());
            let (rank, partner_rank) = (other.rank_of(slot), other.rank_of(partner));
            let (mine, theirs) = (other.slots[slot], other.slots[partner]);
            if rank == partner_rank || other.holds(theirs, rank) {
                continue;
            }
            if other.counts[mine as usize] > 1 && random.below(2) == 0 {
                other.apply(Change::Replace {
                    slot,
                    expert: theirs,
                });
            } else if !other.holds(mine, partner_rank) {
                other.apply(Change::Swap {
                    slot,
                    other: partner,
                });
            }
        }
        polish(&mut other, bound);
        let (now, then) = (other.last().1, here.last().1);
        if now < best.last().1 * (1.0 - 1e-12) {
            best = other.clone();
            if now <= bound * (1.0 + CLOSE) {
                return best;
            }
        }
        if now <= then * (1.0 + 0.05 * random.uniform()) {
            here = other;
        }
    }
    best
}

fn attempts(unit: Unit<'_>) -> usize {
    (EFFORT / (unit.slots() * unit.ranks().max(8)).max(1)).clamp(8, ATTEMPTS)
}

pub(crate) fn polish(search: &mut Search<'_>, target: f64) {
    for _ in 0..search.slots.len() {
        search.descend(target);
        if search.last().1 <= target {
            return;
        }
        let Some((_, change)) = search.best_replace(|_, _| true) else {
            return;
        };
        search.apply(change);
    }
}

fn exchange_counts<'a>(mut best: Search<'a>, bound: f64) -> Search<'a> {
    let unit = best.unit;
    let mut attempts = attempts(unit);
    let usable = unit.usable_ranks() as u32;
    let target = bound * (1.0 + TOLERANCE);
    'improved: loop {
        let (busy, now) = best.last();
        // Taking from experts with many replicas lifts the others of their ranks least.
        let mut losing: Vec<(u64, u32)> = (0..unit.weights.len())
            .filter(|expert| best.counts[*expert] > 1)
            .map(|expert| {
                let (weight, count) = (unit.weights[expert], f64::from(best.counts[expert]));
                (
                    (weight / (count - 1.0) - weight / count).to_bits(),
                    expert as u32,
                )
            })
            .collect();
        losing.sort_unstable();
        // First the experts that make the last rank late, then the others, heaviest share first.
        let mut gaining: Vec<(bool, u64, u32)> = (0..unit.weights.len())
            .filter(|expert| best.counts[*expert] < usable)
            .map(|expert| {
                let share = unit.weights[expert] / f64::from(best.counts[expert]);
                (
                    !best.holds(expert as u32, busy),
                    !share.to_bits(),
                    expert as u32,
                )
            })
            .collect();
        gaining.sort_unstable();
        for &(_, _, gains) in &gaining {
            for &(_, loses) in &losing {
                if loses == gains {
                    continue;
                }
                if attempts == 0 {
                    return best;
                }
                attempts -= 1;
                let mut counts = best.counts.clone();
                counts[gains as usize] += 1;
                counts[loses as usize] -= 1;
                let mut other = Search::pack(unit, counts);
                polish(&mut other, target);
                if other.last().1 < now * (1.0 - 1e-9) {
                    best = other;
                    if best.last().1 <= bound * (1.0 + CLOSE) {
                        return best;
                    }
                    continue 'improved;
                }
            }
        }
        return best;
    }
}
