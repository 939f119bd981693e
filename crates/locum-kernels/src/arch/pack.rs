//! Panels: activations, and weights of outer products, in the order that products read.

use super::simd::Loads;
use crate::operand::Element;

/// `[step][row][part][lane]`, the tail zero: a step's elements by turns in its parts, as weights come
/// apart ([`super::Simd::PARTS`]).
///
/// # Safety
///
/// The CPU has the features; rows have one length; `out` has [`super::panel_units`] of them.
#[inline(always)]
pub(super) unsafe fn pack_dot<S: Loads<T>, T: Element>(rows: &[&[T]], out: *mut u32) {
    const { assert!(S::PARTS == 1 || S::UNIT == 1) };
    let parts = S::PARTS;
    for (r, row) in rows.iter().enumerate() {
        let step = S::LANES * S::UNIT * parts;
        for (index, elements) in row.chunks(step).enumerate() {
            // SAFETY: `index` is one of the row's, its place is within the panel.
            unsafe {
                let out = out.add((index * rows.len() + r) * parts * S::LANES);
                if parts == 1 {
                    S::store(load::<S, T>(elements), out);
                    continue;
                }
                let out = std::slice::from_raw_parts_mut(out, parts * S::LANES);
                out.fill(0);
                for (at, element) in elements.iter().enumerate() {
                    out[at % parts * S::LANES + at / parts] = element.widen().to_bits();
                }
            }
        }
    }
}

/// `[unit][row]`, `stride` from unit to unit, the tail zero: units in the order of
/// [`super::place_in_outer`].
///
/// # Safety
///
/// The CPU has the features; rows have one length and are at most [`Simd::LANES`]; `out` has
/// [`super::padded_units`], the last of them as long as there are rows.
#[inline(always)]
pub(super) unsafe fn pack_outer<S: Loads<T>, T: Element>(
    rows: &[&[T]],
    out: *mut u32,
    stride: usize,
) {
    let elements = rows.first().map_or(0, |row| row.len());
    let step = S::LANES * S::UNIT;
    let units = super::padded_units::<S>(elements);
    for vector in 0..units / S::LANES {
        let range = elements.min(vector * step)..elements.min((vector + 1) * step);
        // SAFETY: each row has the range, which is at most a vector; `out` has these units.
        unsafe {
            let mut square = [S::zero(); 16];
            for (lanes, row) in square.iter_mut().zip(rows) {
                *lanes = load::<S, T>(row.get_unchecked(range.clone()));
            }
            S::transpose(&mut square);
            for (unit, &lanes) in square[..S::LANES].iter().enumerate() {
                let place = super::place_in_outer::<S>(vector * S::LANES + unit, units);
                S::store_some(lanes, rows.len(), out.add(place * stride));
            }
        }
    }
}

/// A vector of at most so many elements.
///
/// # Safety
///
/// The CPU has the features.
#[inline(always)]
unsafe fn load<S: Loads<T>, T: Element>(elements: &[T]) -> S::Vector {
    // SAFETY: all are there.
    unsafe {
        if elements.len() == S::LANES * S::UNIT {
            S::load_elements(elements.as_ptr())
        } else {
            S::load_some(elements.as_ptr(), elements.len())
        }
    }
}
