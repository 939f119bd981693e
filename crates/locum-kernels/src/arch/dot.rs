//! Dot products, for which weights are read where they are: a few tokens at a time, and some rows. With few
//! tokens, weights stream once from memory; with many, a block of rows stays in the second cache for all of
//! them, which is as fast as [`super::outer`] where weights cost next to nothing to widen.
//!
//! AMX has another one in this one's place ([`Loads::dot`]).
//!
//! A tile is `tokens × rows` sums, each a vector over `k`. Its rows are a page of memory apart, or
//! as far as they are long: the CPU's own prefetching follows one stream a page. A tile also asks for
//! the rows of the tile after it, into the second cache: the first has no room for them beside
//! activations, where rows are a multiple of 4 KiB.
//!
//! A row's sum does not depend on the tile that it is in, so that neither does a result depend on how
//! rows are divided among threads.

use super::ahead::Ahead;
use super::simd::Loads;
use crate::operand::Element;

/// One call.
pub(crate) struct Call<W> {
    /// `[step][tokens][part][lane]` or, for AMX, `[unit][tokens]`, the tail zero
    pub(super) panel: *const u32,
    pub(super) tokens: usize,
    /// `[rows][elements]`
    pub(super) weights: *const W,
    pub(super) rows: usize,
    pub(super) elements: usize,
    /// Rows that are read after these, or nothing.
    pub(super) after: *const W,
    /// What AMX asks for that is read later.
    pub(super) ahead: Ahead,
    /// For AMX, whether these weights were not read before: they come from memory.
    pub(super) streams: bool,
    /// `[tokens][rows]`
    pub(super) out: *mut f32,
}

/// How far apart a tile's rows are at least, where they do not follow each other.
const PAGE: usize = 4096;

/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says, `tokens` is at most [`Simd::DOT_TOKENS`].
#[inline(always)]
pub(super) unsafe fn dot<S: Loads<W>, W: Element>(call: &Call<W>) {
    const { assert!(S::DOT_TOKENS <= 6) };
    // SAFETY: passed on. Const generics make the sums registers.
    unsafe {
        match call.tokens {
            1 => all_rows::<S, W, 1>(call),
            2 => all_rows::<S, W, 2>(call),
            3 => all_rows::<S, W, 3>(call),
            4 => all_rows::<S, W, 4>(call),
            5 if S::DOT_TOKENS >= 5 => all_rows::<S, W, 5>(call),
            6 if S::DOT_TOKENS >= 6 => all_rows::<S, W, 6>(call),
            more => unreachable!("{more} tokens"),
        }
    }
}

#[inline(always)]
unsafe fn all_rows<S: Loads<W>, W: Element, const TOKENS: usize>(call: &Call<W>) {
    // SAFETY: passed on.
    unsafe {
        match S::ROWS[TOKENS - 1] {
            8 => tiles::<S, W, TOKENS, 8>(call),
            6 => tiles::<S, W, TOKENS, 6>(call),
            4 => tiles::<S, W, TOKENS, 4>(call),
            _ => tiles::<S, W, TOKENS, 2>(call),
        }
    }
}

/// All rows, `ROWS` at a time.
#[inline(always)]
unsafe fn tiles<S: Loads<W>, W: Element, const TOKENS: usize, const ROWS: usize>(call: &Call<W>) {
    let apart = (PAGE / (call.elements * size_of::<W>())).max(1);
    // What is asked for with the tile at a row.
    let next = |row: usize| match (row + ROWS * apart).checked_sub(call.rows) {
        None => call
            .weights
            .wrapping_add((row + ROWS * apart) * call.elements),
        Some(row) if !call.after.is_null() => call.after.wrapping_add(row * call.elements),
        // What is here already costs nothing.
        Some(_) => call.weights.wrapping_add(row * call.elements),
    };
    let mut row = 0;
    // SAFETY: passed on; tiles are within `rows`.
    unsafe {
        while row + ROWS * apart <= call.rows {
            for row in row..row + apart {
                tile::<S, W, TOKENS, ROWS>(call, row, apart, next(row));
            }
            row += ROWS * apart;
        }
        while row + ROWS <= call.rows {
            tile::<S, W, TOKENS, ROWS>(call, row, 1, next(row));
            row += ROWS;
        }
        while row < call.rows {
            tile::<S, W, TOKENS, 1>(call, row, 1, next(row));
            row += 1;
        }
    }
}

/// Rows from `row` on that are `apart`; asks for the rows from `next` on that are as far apart.
#[inline(always)]
unsafe fn tile<S: Loads<W>, W: Element, const TOKENS: usize, const ROWS: usize>(
    call: &Call<W>,
    row: usize,
    apart: usize,
    next: *const W,
) {
    let step = S::LANES * S::UNIT * S::PARTS;
    let whole = call.elements / step;
    let stride = apart * call.elements;
    // SAFETY: steps are within the rows and the panel: `whole` whole ones, and one of the rest, whose
    // panel is padded. Prefetching may point anywhere.
    unsafe {
        let mut sums = [[S::zero(); ROWS]; TOKENS];
        let mut panel = call.panel;
        let mut weights = call.weights.add(row * call.elements);
        let mut next = next;
        for _ in 0..whole {
            for r in 0..ROWS {
                S::prefetch_second(next.wrapping_add(r * stride).cast());
            }
            for part in 0..S::PARTS {
                let mut w = [S::zero(); ROWS];
                for (r, w) in w.iter_mut().enumerate() {
                    *w = S::load_part(weights.add(r * stride), part);
                }
                for (t, sums) in sums.iter_mut().enumerate() {
                    let x = S::load(panel.add((t * S::PARTS + part) * S::LANES));
                    for (sums, &w) in sums.iter_mut().zip(&w) {
                        *sums = S::multiply_add(*sums, x, w);
                    }
                }
            }
            panel = panel.add(TOKENS * S::PARTS * S::LANES);
            weights = weights.add(step);
            next = next.wrapping_add(step);
        }
        let rest = call.elements - whole * step;
        if rest > 0 {
            for r in 0..ROWS {
                let mut row = [W::ZERO; 32];
                const { assert!(S::LANES * S::UNIT * S::PARTS <= 32) };
                std::ptr::copy_nonoverlapping(weights.add(r * stride), row.as_mut_ptr(), rest);
                for part in 0..S::PARTS {
                    let w = S::load_part(row.as_ptr(), part);
                    for (t, sums) in sums.iter_mut().enumerate() {
                        let x = S::load(panel.add((t * S::PARTS + part) * S::LANES));
                        sums[r] = S::multiply_add(sums[r], x, w);
                    }
                }
            }
        }
        for (t, sums) in sums.iter().enumerate() {
            let out = call.out.add(t * call.rows + row);
            for (fourth, sums) in sums.chunks(4).enumerate() {
                let mut four = [S::zero(); 4];
                four[..sums.len()].copy_from_slice(sums);
                let four = S::sums(four);
                for (r, &sum) in four[..sums.len()].iter().enumerate() {
                    *out.add((fourth * 4 + r) * apart) = sum;
                }
            }
        }
    }
}
