//! Products of few tokens: weights stream once from memory, whole rows at a time.
//!
//! A tile is `tokens × rows` sums, each a vector over `k`. A row's sum does not depend on the tile
//! that it is in, so that neither does a result depend on how rows are divided among threads.

use super::simd::Loads;
use crate::operand::Element;

/// One call.
pub(crate) struct Call<W> {
    /// `[vector of units][tokens][lane]`, the tail zero
    pub(super) panel: *const u32,
    pub(super) tokens: usize,
    /// `[rows][elements]`
    pub(super) weights: *const W,
    pub(super) rows: usize,
    pub(super) elements: usize,
    /// `[tokens][rows]`
    pub(super) out: *mut f32,
}

/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says, `tokens` is at most [`Simd::FEW`].
#[inline(always)]
pub(super) unsafe fn few<S: Loads<W>, W: Element>(call: &Call<W>) {
    // SAFETY: passed on. Const generics make the sums registers.
    unsafe {
        match call.tokens {
            1 => all_rows::<S, W, 1>(call),
            2 => all_rows::<S, W, 2>(call),
            3 => all_rows::<S, W, 3>(call),
            4 => all_rows::<S, W, 4>(call),
            5 => all_rows::<S, W, 5>(call),
            6 => all_rows::<S, W, 6>(call),
            7 => all_rows::<S, W, 7>(call),
            _ => all_rows::<S, W, 8>(call),
        }
    }
}

#[inline(always)]
unsafe fn all_rows<S: Loads<W>, W: Element, const TOKENS: usize>(call: &Call<W>) {
    let mut row = 0;
    // SAFETY: passed on; tiles are within `rows`.
    unsafe {
        match S::ROWS[TOKENS - 1] {
            4 => {
                while row + 4 <= call.rows {
                    tile::<S, W, TOKENS, 4>(call, row);
                    row += 4;
                }
            }
            3 => {
                while row + 3 <= call.rows {
                    tile::<S, W, TOKENS, 3>(call, row);
                    row += 3;
                }
            }
            _ => {
                while row + 2 <= call.rows {
                    tile::<S, W, TOKENS, 2>(call, row);
                    row += 2;
                }
            }
        }
        while row < call.rows {
            tile::<S, W, TOKENS, 1>(call, row);
            row += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Loads<W>, W: Element, const TOKENS: usize, const ROWS: usize>(
    call: &Call<W>,
    row: usize,
) {
    let step = S::LANES * S::UNIT;
    let whole = call.elements / step;
    // SAFETY: vectors are within the rows and the panel: `whole` whole ones, and one of the rest,
    // whose panel is padded. Prefetching may point anywhere.
    unsafe {
        let mut sums = [[S::zero(); ROWS]; TOKENS];
        let weights = call.weights.add(row * call.elements);
        for vector in 0..whole {
            let mut w = [S::zero(); ROWS];
            for (r, w) in w.iter_mut().enumerate() {
                let place = weights.add(r * call.elements + vector * step);
                *w = S::load_elements(place);
                S::prefetch(place.wrapping_add(ROWS * call.elements).cast());
            }
            let panel = call.panel.add(vector * TOKENS * S::LANES);
            for (t, sums) in sums.iter_mut().enumerate() {
                let x = S::load(panel.add(t * S::LANES));
                for (sums, &w) in sums.iter_mut().zip(&w) {
                    *sums = S::multiply_add(*sums, x, w);
                }
            }
        }
        let rest = call.elements - whole * step;
        if rest > 0 {
            let panel = call.panel.add(whole * TOKENS * S::LANES);
            for r in 0..ROWS {
                let w = S::load_some(weights.add(r * call.elements + whole * step), rest);
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::load(panel.add(t * S::LANES));
                    sums[r] = S::multiply_add(sums[r], x, w);
                }
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            for (r, &sums) in sums.iter().enumerate() {
                *call.out.add(t * call.rows + row + r) = S::sum(sums);
            }
        }
    }
}
