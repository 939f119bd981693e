//! Outer products, each of a panel's tokens by two vectors of packed weight rows, added up over `k`.
//!
//! Each sum is one lane; activations are broadcast. A sum has parts, which are what the lanes of the
//! sums of [`super::dot`] add up, and which are joined in the order in which that joins its lanes: so
//! a token's results are the same however many tokens are computed with it. Joining costs 2 to 5 % of
//! the time.

use std::mem::MaybeUninit;

use super::ahead::Ahead;
use super::simd::Simd;

/// One call.
pub(crate) struct Call {
    /// `[lanes][units][tokens]`
    pub(super) panel: *const u32,
    pub(super) tokens: usize,
    /// `[lanes][units][2 · LANES]`
    pub(super) weights: *const u32,
    /// Parts of a sum, a power of two.
    pub(super) lanes: usize,
    /// Units of a part.
    pub(super) units: usize,
    /// `[tokens][LANES]`
    pub(super) left: *mut f32,
    /// `[tokens][LANES]`
    pub(super) right: *mut f32,
    pub(super) ahead: Ahead,
}

/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says, `tokens` is at most [`Simd::OUTER_TOKENS`].
#[inline(always)]
pub(super) unsafe fn outer<S: Simd>(call: &Call) {
    // SAFETY: passed on. Const generics make the sums registers; the guards leave out what an
    // instruction set has no registers for.
    unsafe {
        match call.tokens {
            1 => tile::<S, 1>(call),
            2 => tile::<S, 2>(call),
            3 => tile::<S, 3>(call),
            4 => tile::<S, 4>(call),
            5 if S::OUTER_TOKENS >= 5 => tile::<S, 5>(call),
            6 if S::OUTER_TOKENS >= 6 => tile::<S, 6>(call),
            7 if S::OUTER_TOKENS >= 7 => tile::<S, 7>(call),
            8 if S::OUTER_TOKENS >= 8 => tile::<S, 8>(call),
            9 if S::OUTER_TOKENS >= 9 => tile::<S, 9>(call),
            10 if S::OUTER_TOKENS >= 10 => tile::<S, 10>(call),
            11 if S::OUTER_TOKENS >= 11 => tile::<S, 11>(call),
            _ if S::OUTER_TOKENS >= 12 => tile::<S, 12>(call),
            _ => {}
        }
    }
}

/// Parts that wait to be joined, at most: of one lane, of two, of four and of eight.
const WAITING: usize = 4;

/// Units that are computed between two looks at whether there are more.
const TURN: usize = 4;

/// One unit of all tokens and rows.
#[inline(always)]
unsafe fn unit<S: Simd, const TOKENS: usize>(
    panel: &mut *const u32,
    weights: &mut *const u32,
    left: &mut [S::Vector; TOKENS],
    right: &mut [S::Vector; TOKENS],
) {
    // SAFETY: passed on.
    unsafe {
        let w = [S::load(*weights), S::load(weights.add(S::LANES))];
        for t in 0..TOKENS {
            let x = S::broadcast(panel.add(t));
            left[t] = S::multiply_add(left[t], x, w[0]);
            right[t] = S::multiply_add(right[t], x, w[1]);
        }
        *panel = panel.add(TOKENS);
        *weights = weights.add(2 * S::LANES);
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const TOKENS: usize>(call: &Call) {
    // SAFETY: units are within panel and weights. Prefetching may point anywhere.
    unsafe {
        let mut waiting = [[[MaybeUninit::<S::Vector>::uninit(); 2]; TOKENS]; WAITING];
        let mut panel = call.panel;
        let mut weights = call.weights;
        let mut line = call.ahead.start;
        let mut lines = call.ahead.lines;
        for lane in 1..=call.lanes {
            let mut left = [S::zero(); TOKENS];
            let mut right = [S::zero(); TOKENS];
            let mut units = call.units;
            while units > 0 {
                // Some units at a time: the CPU foresees the end of a short loop.
                let turn = if units >= TURN { TURN } else { 1 };
                if lines > 0 {
                    for _ in 0..turn {
                        S::prefetch_second(line);
                        line = line.wrapping_add(Ahead::LINE);
                    }
                    lines = lines.saturating_sub(turn);
                }
                if turn == TURN {
                    for _ in 0..TURN {
                        unit::<S, TOKENS>(&mut panel, &mut weights, &mut left, &mut right);
                    }
                } else {
                    unit::<S, TOKENS>(&mut panel, &mut weights, &mut left, &mut right);
                }
                units -= turn;
            }
            // Lanes join as bits carry: the second takes the first, the fourth the third and the first two.
            // What is taken has been put there.
            let joins = (lane.trailing_zeros() as usize).min(WAITING);
            for waiting in &waiting[..joins] {
                for t in 0..TOKENS {
                    left[t] = S::add(waiting[t][0].assume_init(), left[t]);
                    right[t] = S::add(waiting[t][1].assume_init(), right[t]);
                }
            }
            if lane == call.lanes {
                for t in 0..TOKENS {
                    S::store(left[t], call.left.add(t * S::LANES).cast());
                    S::store(right[t], call.right.add(t * S::LANES).cast());
                }
            } else {
                for t in 0..TOKENS {
                    waiting[joins][t] = [left[t], right[t]].map(MaybeUninit::new);
                }
            }
        }
    }
}
