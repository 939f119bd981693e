//! Products of many tokens: a panel of tokens by two vectors of packed weight rows.
//!
//! Each sum is one lane and goes through `k` in order; activations are broadcast.

use super::simd::Simd;

/// Memory to ask for while a tile is computed: a line for each unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    start: *const u8,
    lines: usize,
}

impl Ahead {
    const LINE: usize = 64;

    /// The lines from `first` on of a slice, at most `lines` of them.
    pub(crate) fn new<T>(slice: &[T], first: usize, lines: usize) -> Self {
        let all = size_of_val(slice).div_ceil(Self::LINE);
        Self {
            start: slice.as_ptr().cast::<u8>().wrapping_add(first * Self::LINE),
            lines: lines.min(all.saturating_sub(first)),
        }
    }
}

/// One call.
pub(crate) struct Call {
    /// `[units][tokens]`
    pub(super) panel: *const u32,
    pub(super) tokens: usize,
    /// `[units][2 · LANES]`
    pub(super) weights: *const u32,
    pub(super) units: usize,
    /// `[tokens][LANES]`
    pub(super) left: *mut f32,
    /// `[tokens][LANES]`
    pub(super) right: *mut f32,
    pub(super) ahead: Ahead,
}

/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says, `tokens` is at most [`Simd::MANY`].
#[inline(always)]
pub(super) unsafe fn many<S: Simd>(call: &Call) {
    // SAFETY: passed on. Const generics make the sums registers; the guards leave out what an
    // instruction set has no registers for.
    unsafe {
        match call.tokens {
            1 => tile::<S, 1>(call),
            2 => tile::<S, 2>(call),
            3 => tile::<S, 3>(call),
            4 => tile::<S, 4>(call),
            5 if S::MANY >= 5 => tile::<S, 5>(call),
            6 if S::MANY >= 6 => tile::<S, 6>(call),
            7 if S::MANY >= 7 => tile::<S, 7>(call),
            8 if S::MANY >= 8 => tile::<S, 8>(call),
            9 if S::MANY >= 9 => tile::<S, 9>(call),
            10 if S::MANY >= 10 => tile::<S, 10>(call),
            11 if S::MANY >= 11 => tile::<S, 11>(call),
            _ if S::MANY >= 12 => tile::<S, 12>(call),
            _ => {}
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const TOKENS: usize>(call: &Call) {
    // SAFETY: unit `k` is within panel and weights. Prefetching may point anywhere.
    unsafe {
        let mut left = [S::zero(); TOKENS];
        let mut right = [S::zero(); TOKENS];
        let mut panel = call.panel;
        let mut weights = call.weights;
        let mut line = call.ahead.start;
        let prefetched = call.ahead.lines.min(call.units);
        for k in 0..call.units {
            let w = [S::load(weights), S::load(weights.add(S::LANES))];
            for t in 0..TOKENS {
                let x = S::broadcast(panel.add(t));
                left[t] = S::multiply_add(left[t], x, w[0]);
                right[t] = S::multiply_add(right[t], x, w[1]);
            }
            if k < prefetched {
                S::prefetch_second(line);
                line = line.wrapping_add(Ahead::LINE);
            }
            panel = panel.add(TOKENS);
            weights = weights.add(2 * S::LANES);
        }
        for t in 0..TOKENS {
            S::store(left[t], call.left.add(t * S::LANES).cast());
            S::store(right[t], call.right.add(t * S::LANES).cast());
        }
    }
}
