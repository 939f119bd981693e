//! One instruction set's vectors.
//!
//! A *unit* is what one 32-bit lane holds: one `f32`, or a pair of `bf16`.

use super::{dot, pack};
use crate::operand::Element;

/// Vectors of units, and of `f32` sums of as many lanes.
///
/// # Safety
///
/// Functions need the CPU features of the instruction set, and pointers to the lanes that they name.
pub(crate) unsafe trait Simd: Copy {
    /// A vector of units, or of sums.
    type Vector: Copy;
    /// Units of a vector.
    const LANES: usize;
    /// Elements of a unit.
    const UNIT: usize;
    /// Whether [`super::dot`] goes by AMX's tiles: of panels `[unit][token]`, which are full but for the last, and
    /// few rows of weights at a time.
    const TILES: bool = false;
    /// Vectors that a step of weights is taken apart into, elements by turns, for [`super::dot`]: `bf16`
    /// is widened where it is, which costs less than to spread it. Other types follow, so that the type
    /// does not change the order of sums.
    const PARTS: usize;
    /// Most tokens of a panel for [`super::dot`]: up to 6, or with [tiles](Self::TILES) 32.
    const DOT_TOKENS: usize;
    /// Most tokens of a panel for [`super::outer`].
    const OUTER_TOKENS: usize;
    /// The place of each lane in the order in which [`sums`](Self::sums) joins lanes: two that follow each
    /// other, then twos, and so on.
    const JOINED: [usize; 16];
    /// Rows of weights at a time, for each number of tokens from one on: 2, 4, 6 or 8.
    const ROWS: [usize; 6];

    unsafe fn zero() -> Self::Vector;
    unsafe fn load(units: *const u32) -> Self::Vector;
    unsafe fn broadcast(unit: *const u32) -> Self::Vector;
    unsafe fn store(vector: Self::Vector, out: *mut u32);
    /// Stores the first so many lanes, at most all.
    unsafe fn store_some(vector: Self::Vector, lanes: usize, out: *mut u32);
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `sums + a · b`, where a unit's products are added together.
    unsafe fn multiply_add(sums: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The sum of the lanes of each, in an order that is the same for all four.
    unsafe fn sums(four: [Self::Vector; 4]) -> [f32; 4];
    /// Transposes the square that the first [`Self::LANES`] vectors make.
    unsafe fn transpose(square: &mut [Self::Vector; 16]);
    /// Asks for a line of memory, into the second cache.
    unsafe fn prefetch_second(line: *const u8);
    /// A unit of activations from values that [`super::activate`] has rounded.
    fn unit(values: [f32; 2]) -> u32;
}

/// Loading units from stored numbers.
///
/// # Safety
///
/// Functions need the CPU features of the instruction set, and pointers to the elements.
pub(crate) unsafe trait Loads<T: Element>: Simd {
    /// From this many tokens on, packing weights of this type for [`super::outer`] pays: what
    /// [`super::dot`] does to widen them is done once then, and not for each panel.
    fn pack_from(self) -> usize;

    /// One of the [`PARTS`](Simd::PARTS) of `LANES · UNIT · PARTS` elements at any alignment.
    unsafe fn load_part(elements: *const T, part: usize) -> Self::Vector;

    /// A whole vector, from `LANES · UNIT` elements at any alignment.
    unsafe fn load_elements(elements: *const T) -> Self::Vector;

    /// [`super::dot`] with weights of this type.
    #[inline(always)]
    unsafe fn dot(call: &dot::Call<T>) {
        // SAFETY: passed on.
        unsafe { dot::dot::<Self, T>(call) }
    }

    /// [`super::pack_dot`] of activations of this type.
    #[inline(always)]
    unsafe fn pack_dot(rows: &[&[T]], out: *mut u32) {
        // SAFETY: passed on.
        unsafe { pack::pack_dot::<Self, T>(rows, out) }
    }

    /// A vector that starts with some elements and goes on with zeros.
    #[inline(always)]
    unsafe fn load_some(elements: *const T, count: usize) -> Self::Vector {
        let mut whole = [T::ZERO; 32];
        const { assert!(Self::LANES * Self::UNIT <= 32) };
        debug_assert!(count < Self::LANES * Self::UNIT);
        // SAFETY: the caller has `count` elements, fewer than a vector's, which is at most 32.
        unsafe {
            std::ptr::copy_nonoverlapping(elements, whole.as_mut_ptr(), count);
            Self::load_elements(whole.as_ptr())
        }
    }
}
