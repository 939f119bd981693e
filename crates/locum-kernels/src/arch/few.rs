//! Products of few tokens: weights stream once from memory, whole rows at a time.
//!
//! One row at a time is what the CPU's own prefetching likes best; several rows, which share loads of
//! activations, want to be asked for ahead.
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
    // SAFETY: passed on.
    unsafe {
        match S::ROWS[TOKENS - 1] {
            6 => tiles::<S, W, TOKENS, 6, 1>(call),
            4 => tiles::<S, W, TOKENS, 4, 1>(call),
            3 => tiles::<S, W, TOKENS, 3, 1>(call),
            2 => tiles::<S, W, TOKENS, 2, 1>(call),
            _ => tiles::<S, W, TOKENS, 1, 4>(call),
        }
    }
}

/// All rows, `ROWS` at a time; the sums of a row in `CHAINS` parts.
#[inline(always)]
unsafe fn tiles<
    S: Loads<W>,
    W: Element,
    const TOKENS: usize,
    const ROWS: usize,
    const CHAINS: usize,
>(
    call: &Call<W>,
) {
    let mut row = 0;
    // SAFETY: passed on; tiles are within `rows`.
    unsafe {
        while row + ROWS <= call.rows {
            tile::<S, W, TOKENS, ROWS, CHAINS>(call, row);
            row += ROWS;
        }
        while row < call.rows {
            tile::<S, W, TOKENS, 1, CHAINS>(call, row);
            row += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<
    S: Loads<W>,
    W: Element,
    const TOKENS: usize,
    const ROWS: usize,
    const CHAINS: usize,
>(
    call: &Call<W>,
    row: usize,
) {
    let step = S::LANES * S::UNIT;
    let whole = call.elements / step;
    // SAFETY: vectors are within the rows and the panel: `whole` whole ones, and one of the rest,
    // whose panel is padded. Prefetching may point anywhere.
    unsafe {
        let mut sums = [[[S::zero(); ROWS]; TOKENS]; CHAINS];
        let weights = call.weights.add(row * call.elements);
        let mut vector = 0;
        while vector + CHAINS <= whole {
            for sums in &mut sums {
                let mut w = [S::zero(); ROWS];
                for (r, w) in w.iter_mut().enumerate() {
                    let place = weights.add(r * call.elements + vector * step);
                    *w = S::load_elements(place);
                    if ROWS > 1 {
                        S::prefetch(place.wrapping_add(ROWS * call.elements).cast());
                    }
                }
                let panel = call.panel.add(vector * TOKENS * S::LANES);
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::load(panel.add(t * S::LANES));
                    for (sums, &w) in sums.iter_mut().zip(&w) {
                        *sums = S::multiply_add(*sums, x, w);
                    }
                }
                vector += 1;
            }
        }
        let [first, others @ ..] = &mut sums[..] else {
            return;
        };
        for others in others {
            for (first, others) in first.iter_mut().zip(others) {
                for (first, others) in first.iter_mut().zip(others) {
                    *first = S::add(*first, *others);
                }
            }
        }
        while vector * step < call.elements {
            let panel = call.panel.add(vector * TOKENS * S::LANES);
            let rest = (call.elements - vector * step).min(step);
            for r in 0..ROWS {
                let place = weights.add(r * call.elements + vector * step);
                let w = if rest == step {
                    S::load_elements(place)
                } else {
                    S::load_some(place, rest)
                };
                for (t, sums) in first.iter_mut().enumerate() {
                    let x = S::load(panel.add(t * S::LANES));
                    sums[r] = S::multiply_add(sums[r], x, w);
                }
            }
            vector += 1;
        }
        for (t, sums) in first.iter().enumerate() {
            for (r, &sums) in sums.iter().enumerate() {
                *call.out.add(t * call.rows + row + r) = S::sum(sums);
            }
        }
    }
}
