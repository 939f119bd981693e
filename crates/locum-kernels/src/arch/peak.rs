//! The most that a CPU multiplies and adds, and the most that it reads.

use super::simd::Simd;

/// Independent sums: enough to hide the instruction's latency.
pub(super) const SUMS: usize = 12;

/// # Safety
///
/// The CPU has the features.
#[inline(always)]
pub(super) unsafe fn peak<S: Simd>(rounds: usize) -> f32 {
    // SAFETY: the caller has the features; the unit is there.
    unsafe {
        let factor = S::broadcast(&std::hint::black_box(0x3f80_3f80));
        let mut sums = [S::zero(); SUMS];
        for _ in 0..rounds {
            for sums in &mut sums {
                *sums = S::multiply_add(*sums, factor, factor);
            }
        }
        let mut total = 0.0;
        for sums in sums {
            total += S::sums([sums; 4])[0];
        }
        total
    }
}

/// Adds up memory, as fast as vectors are read.
///
/// # Safety
///
/// The CPU has the features.
#[inline(always)]
pub(super) unsafe fn read<S: Simd>(memory: &[f32]) -> f32 {
    const STREAM: usize = 8;
    // SAFETY: the caller has the features; vectors are within chunks.
    unsafe {
        let mut sums = [S::zero(); STREAM];
        for chunk in memory.chunks_exact(STREAM * S::LANES) {
            for (at, sums) in sums.iter_mut().enumerate() {
                *sums = S::add(*sums, S::load(chunk.as_ptr().add(at * S::LANES).cast()));
            }
        }
        let mut total = 0.0;
        for sums in sums {
            total += S::sums([sums; 4])[0];
        }
        total
    }
}
