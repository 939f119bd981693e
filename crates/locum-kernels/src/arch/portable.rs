//! Any CPU: arrays, which the compiler vectorises as far as the target lets it.

use half::{bf16, f16};

use super::entry::machine;
use super::simd::{Loads, Simd};
use crate::operand::Element;

/// The instructions that every CPU of the target has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

machine!(Portable);

// SAFETY: no features are needed; each function touches the lanes that it names.
unsafe impl Simd for Portable {
    type Vector = [f32; 8];
    const LANES: usize = 8;
    const UNIT: usize = 1;
    const PARTS: usize = 1;
    const DOT_TOKENS: usize = 4;
    const OUTER_TOKENS: usize = 4;
    const JOINED: [usize; 16] = [0, 4, 2, 6, 1, 5, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    const ROWS: [usize; 6] = [4, 2, 2, 2, 2, 2];

    #[inline(always)]
    unsafe fn zero() -> [f32; 8] {
        [0.0; 8]
    }

    #[inline(always)]
    unsafe fn load(units: *const u32) -> [f32; 8] {
        // SAFETY: the caller has them.
        unsafe { units.cast::<[f32; 8]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn broadcast(unit: *const u32) -> [f32; 8] {
        // SAFETY: the caller has it.
        [unsafe { unit.cast::<f32>().read() }; 8]
    }

    #[inline(always)]
    unsafe fn store(vector: [f32; 8], out: *mut u32) {
        // SAFETY: the caller has the place.
        unsafe { out.cast::<[f32; 8]>().write_unaligned(vector) }
    }

    #[inline(always)]
    unsafe fn store_some(vector: [f32; 8], lanes: usize, out: *mut u32) {
        // SAFETY: the caller has the places.
        unsafe { std::ptr::copy_nonoverlapping(vector.as_ptr(), out.cast(), lanes.min(8)) }
    }

    #[inline(always)]
    unsafe fn add(a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: [f32; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        std::array::from_fn(|i| sums[i] + a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn sums(four: [[f32; 8]; 4]) -> [f32; 4] {
        four.map(|s| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut [[f32; 8]; 16]) {
        let rows = *square;
        for (column, out) in square[..8].iter_mut().enumerate() {
            *out = std::array::from_fn(|row| rows[row][column]);
        }
    }

    #[inline(always)]
    unsafe fn prefetch_second(_: *const u8) {}

    #[inline(always)]
    fn unit(values: [f32; 2]) -> u32 {
        values[0].to_bits()
    }
}

/// Loads of a type whose packing pays from so many tokens on.
macro_rules! loads {
    ($type:ty, $pack_from:literal) => {
        // SAFETY: the caller has the elements.
        unsafe impl Loads<$type> for Portable {
            fn pack_from(self) -> usize {
                $pack_from
            }

            #[inline(always)]
            unsafe fn load_part(elements: *const $type, _: usize) -> [f32; 8] {
                // SAFETY: the caller has the one part.
                unsafe { Self::load_elements(elements) }
            }

            #[inline(always)]
            unsafe fn load_elements(elements: *const $type) -> [f32; 8] {
                // SAFETY: the caller has them.
                unsafe { elements.cast::<[$type; 8]>().read_unaligned() }.map(Element::widen)
            }
        }
    };
}

loads!(f32, 129);
loads!(bf16, 129);
loads!(f16, 5);
