//! AVX2 with FMA and F16C: 16 registers of 8 lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use crate::arch::entry::machine;
use crate::arch::simd::{Loads, Simd};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// If this CPU has it.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

machine!(Avx2, "avx2,fma,f16c");

// SAFETY: callers have the features; each function touches the lanes that it names, at any alignment.
unsafe impl Simd for Avx2 {
    type Vector = __m256;
    const LANES: usize = 8;
    const UNIT: usize = 1;
    const PARTS: usize = 2;
    const DOT_TOKENS: usize = 5;
    const OUTER_TOKENS: usize = 6;
    const JOINED: [usize; 16] = [0, 2, 1, 3, 4, 6, 5, 7, 0, 0, 0, 0, 0, 0, 0, 0];
    const ROWS: [usize; 6] = [8, 4, 4, 2, 2, 2];

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller has the features.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(units: *const u32) -> __m256 {
        // SAFETY: the caller has the units.
        unsafe { _mm256_loadu_ps(units.cast()) }
    }

    #[inline(always)]
    unsafe fn broadcast(unit: *const u32) -> __m256 {
        // SAFETY: the caller has the unit.
        unsafe { _mm256_broadcast_ss(&*unit.cast()) }
    }

    #[inline(always)]
    unsafe fn store(vector: __m256, out: *mut u32) {
        // SAFETY: the caller has the place.
        unsafe { _mm256_storeu_ps(out.cast(), vector) }
    }

    #[inline(always)]
    unsafe fn store_some(vector: __m256, lanes: usize, out: *mut u32) {
        // Stores with a mask are slow on many CPUs.
        // SAFETY: the caller has the places; each store is of lanes that are asked for.
        unsafe {
            if lanes >= 8 {
                return Self::store(vector, out);
            }
            let (mut rest, mut out) = (_mm256_castps256_ps128(vector), out);
            if lanes & 4 != 0 {
                _mm_storeu_ps(out.cast(), rest);
                rest = _mm256_extractf128_ps::<1>(vector);
                out = out.add(4);
            }
            if lanes & 2 != 0 {
                _mm_storel_pd(out.cast(), _mm_castps_pd(rest));
                rest = _mm_movehl_ps(rest, rest);
                out = out.add(2);
            }
            if lanes & 1 != 0 {
                _mm_store_ss(out.cast(), rest);
            }
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has the features.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: __m256, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has the features.
        unsafe { _mm256_fmadd_ps(a, b, sums) }
    }

    #[inline(always)]
    unsafe fn sums([a, b, c, d]: [__m256; 4]) -> [f32; 4] {
        // SAFETY: the caller has the features.
        unsafe {
            // Of two and two, then of four, within 128-bit halves; then the halves.
            let ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let low = _mm256_shuffle_ps::<0x44>(ab, cd);
            let s = _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(ab, cd));
            let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
            std::mem::transmute::<__m128, [f32; 4]>(s)
        }
    }

    #[inline(always)]
    unsafe fn transpose(square: &mut [__m256; 16]) {
        let r = *square;
        // SAFETY: the caller has the features.
        unsafe {
            let mut t = [_mm256_setzero_ps(); 8];
            for i in 0..4 {
                t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
                t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
            }
            let mut u = t;
            for i in 0..2 {
                u[4 * i] = _mm256_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 1] = _mm256_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
                u[4 * i + 2] = _mm256_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
                u[4 * i + 3] = _mm256_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
            }
            for i in 0..4 {
                square[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[i + 4]);
                square[i + 4] = _mm256_permute2f128_ps::<0x31>(u[i], u[i + 4]);
            }
        }
    }

    #[inline(always)]
    unsafe fn prefetch_second(line: *const u8) {
        // SAFETY: prefetching may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }

    #[inline(always)]
    fn unit(values: [f32; 2]) -> u32 {
        values[0].to_bits()
    }
}

/// The elements of even or of odd places.
///
/// # Safety
///
/// The CPU has AVX2.
#[inline(always)]
unsafe fn turns(first: __m256, second: __m256, part: usize) -> __m256 {
    // SAFETY: the caller has the feature.
    unsafe {
        let within_halves = if part == 0 {
            _mm256_shuffle_ps::<0x88>(first, second)
        } else {
            _mm256_shuffle_ps::<0xdd>(first, second)
        };
        _mm256_castpd_ps(_mm256_permute4x64_pd::<0xd8>(_mm256_castps_pd(
            within_halves,
        )))
    }
}

// SAFETY: as above.
unsafe impl Loads<f32> for Avx2 {
    fn pack_from(self) -> usize {
        19
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const f32, part: usize) -> __m256 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let first = Self::load_elements(elements);
            turns(first, Self::load_elements(elements.add(8)), part)
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const f32) -> __m256 {
        // SAFETY: the caller has the elements.
        unsafe { _mm256_loadu_ps(elements) }
    }
}

// SAFETY: as above.
unsafe impl Loads<f16> for Avx2 {
    fn pack_from(self) -> usize {
        19
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const f16, part: usize) -> __m256 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let first = Self::load_elements(elements);
            turns(first, Self::load_elements(elements.add(8)), part)
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const f16) -> __m256 {
        // SAFETY: the caller has the elements.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(elements.cast())) }
    }
}

// SAFETY: as above.
unsafe impl Loads<bf16> for Avx2 {
    fn pack_from(self) -> usize {
        49
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const bf16, part: usize) -> __m256 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let pairs = _mm256_loadu_si256(elements.cast());
            _mm256_castsi256_ps(if part == 0 {
                _mm256_slli_epi32::<16>(pairs)
            } else {
                _mm256_and_si256(pairs, _mm256_set1_epi32(!0xffff))
            })
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const bf16) -> __m256 {
        // SAFETY: the caller has the elements.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(elements.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}
