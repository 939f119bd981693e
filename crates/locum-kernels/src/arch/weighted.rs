//! Weighted sums of rows: what attention makes of values, for the few queries of a token.
//!
//! Each sum is one lane and goes through the rows in order, as in [`super::outer`]: the same sums, bit by
//! bit.

use super::simd::Loads;
use crate::operand::Element;

/// One call.
pub(crate) struct Call<T> {
    /// `[rows][queries]`
    pub(super) weights: *const u32,
    pub(super) queries: usize,
    /// Rows of `columns` values, `stride` elements apart.
    pub(super) values: *const T,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
    /// `[queries][padded]`, whole vectors
    pub(super) out: *mut f32,
    pub(super) padded: usize,
}

/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says, `queries` is at most 6, and units are
/// elements.
#[inline(always)]
pub(super) unsafe fn weighted<S: Loads<T>, T: Element>(call: &Call<T>) {
    const { assert!(S::UNIT == 1) };
    // SAFETY: passed on. Const generics make the sums registers.
    unsafe {
        match call.queries {
            1 => all::<S, T, 1, 8>(call),
            2 => all::<S, T, 2, 4>(call),
            3 => all::<S, T, 3, 2>(call),
            4 => all::<S, T, 4, 2>(call),
            5 => all::<S, T, 5, 2>(call),
            6 => all::<S, T, 6, 2>(call),
            more => unreachable!("{more} queries"),
        }
    }
}

/// All columns, some vectors of them at a time.
#[inline(always)]
unsafe fn all<S: Loads<T>, T: Element, const QUERIES: usize, const VECTORS: usize>(call: &Call<T>) {
    let whole = call.columns / S::LANES;
    let mut vector = 0;
    // SAFETY: passed on; tiles are within the columns.
    unsafe {
        while vector + VECTORS <= whole {
            tile::<S, T, QUERIES, VECTORS>(call, vector);
            vector += VECTORS;
        }
        while vector * S::LANES < call.columns {
            tile::<S, T, QUERIES, 1>(call, vector);
            vector += 1;
        }
    }
}

/// The vectors from one on, of which the last may not be whole where it is the only one.
#[inline(always)]
unsafe fn tile<S: Loads<T>, T: Element, const QUERIES: usize, const VECTORS: usize>(
    call: &Call<T>,
    vector: usize,
) {
    let first = vector * S::LANES;
    let left = call.columns - first;
    // SAFETY: columns are within each row and, padded, within `out`.
    unsafe {
        let mut sums = [[S::zero(); VECTORS]; QUERIES];
        for row in 0..call.rows {
            let from = call.values.add(row * call.stride + first);
            let mut values = [S::zero(); VECTORS];
            for (v, values) in values.iter_mut().enumerate() {
                *values = if VECTORS == 1 && left < S::LANES {
                    S::load_some(from, left)
                } else {
                    S::load_elements(from.add(v * S::LANES))
                };
            }
            for (query, sums) in sums.iter_mut().enumerate() {
                let weight = S::broadcast(call.weights.add(row * QUERIES + query));
                for (sum, &values) in sums.iter_mut().zip(&values) {
                    *sum = S::multiply_add(*sum, weight, values);
                }
            }
        }
        for (query, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                let place = query * call.padded + first + v * S::LANES;
                S::store(sum, call.out.add(place).cast());
            }
        }
    }
}
