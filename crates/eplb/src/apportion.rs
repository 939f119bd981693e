//! How many replicas each expert gets, when only the largest share counts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Replica counts that minimise the largest `weight / count`, with at least 1 and at most `cap`
/// replicas each.
///
/// Always giving the next slot to the largest share is optimal for this objective: it is the
/// divisor method of apportionment with the quotients `w/1, w/2, …` (as for D'Hondt, with the
/// largest quotient that is *left over* as objective). Ties go to the lowest id.
///
/// Slots beyond `cap` for every expert stay unused; the counts' sum says how many were given out.
pub(crate) fn replica_counts(weights: &[f64], slots: usize, cap: usize, counts: &mut Vec<u32>) {
    counts.clear();
    counts.resize(weights.len(), 1);
    let spare = slots.saturating_sub(weights.len());
    if spare == 0 || cap <= 1 {
        return;
    }
    // Non-negative floats order like their bit patterns.
    let mut heap: BinaryHeap<(u64, Reverse<u32>)> = weights
        .iter()
        .enumerate()
        .map(|(expert, weight)| (weight.to_bits(), Reverse(expert as u32)))
        .collect();
    for _ in 0..spare {
        let Some((_, Reverse(expert))) = heap.pop() else {
            return;
        };
        let count = &mut counts[expert as usize];
        *count += 1;
        if (*count as usize) < cap {
            let share = weights[expert as usize] / f64::from(*count);
            heap.push((share.to_bits(), Reverse(expert)));
        }
    }
}

/// The largest share under [`replica_counts`].
pub(crate) fn largest_share(weights: &[f64], counts: &[u32]) -> f64 {
    weights
        .iter()
        .zip(counts)
        .map(|(weight, count)| weight / f64::from(*count))
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Smallest largest share over all count vectors, by enumeration.
    fn enumerate(weights: &[f64], spare: usize, cap: u32) -> f64 {
        let Some((first, rest)) = weights.split_first() else {
            return 0.0;
        };
        (0..=spare)
            .filter(|extra| (*extra as u32) < cap)
            .map(|extra| (first / (extra + 1) as f64).max(enumerate(rest, spare - extra, cap)))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn largest_share_equals_enumeration() {
        let cases: [&[f64]; 4] = [
            &[5.0, 3.0, 1.0],
            &[90.0, 80.0, 70.0, 1.0],
            &[1.0, 1.0, 1.0, 1.0],
            &[1000.0, 1.0, 0.0, 3.5],
        ];
        for weights in cases {
            for spare in 0..6 {
                for cap in 1..5 {
                    let mut counts = Vec::new();
                    replica_counts(weights, weights.len() + spare, cap as usize, &mut counts);
                    assert!(counts.iter().all(|count| (1..=cap).contains(count)));
                    assert!(counts.iter().sum::<u32>() as usize <= weights.len() + spare);
                    assert_eq!(
                        largest_share(weights, &counts),
                        enumerate(weights, spare, cap),
                        "{weights:?} {spare} {cap}"
                    );
                }
            }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        let mut counts = Vec::new();
        replica_counts(&[2.0, 2.0, 2.0], 5, 8, &mut counts);
        assert_eq!(counts, [2, 2, 1]);
    }
}
