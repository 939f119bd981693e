//! AVX-512: 32 registers of 16 lanes, exact products or dot products of `bf16` pairs.

use std::arch::x86_64::*;

use half::{bf16, f16};

use crate::arch::entry::machine;
use crate::arch::simd::{Loads, Simd};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512 {
    /// [`Loads::pack_from`] of `bf16` weights.
    pack_bf16_from: usize,
}

impl Avx512 {
    /// If this CPU has it.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        // On AMD's CPUs, widening costs nothing beside products. On Intel's, both need the same ports.
        let intel = __cpuid(0).ebx.to_ne_bytes() == *b"Genu";
        let pack_bf16_from = if intel { 97 } else { usize::MAX };
        found.then_some(Self { pack_bf16_from })
    }
}

/// Proof that the CPU has AVX-512's `bf16` dot products too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(());

impl Avx512Bf16 {
    /// If this CPU has it.
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512bf16") && Avx512::detect().is_some();
        found.then_some(Self(()))
    }
}

machine!(Avx512, "avx512f,avx512bw,avx512dq,avx512vl");
machine!(Avx512Bf16, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");

/// What both have in common.
macro_rules! simd {
    ($unit:literal, $parts:literal, $dot_tokens:expr) => {
        type Vector = __m512;
        const LANES: usize = 16;
        const UNIT: usize = $unit;
        const PARTS: usize = $parts;
        const DOT_TOKENS: usize = $dot_tokens;
        const OUTER_TOKENS: usize = 12;
        const JOINED: [usize; 16] = [0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15];
        const ROWS: [usize; 6] = [8, 8, 6, 4, 4, 4];

        #[inline(always)]
        unsafe fn zero() -> __m512 {
            // SAFETY: the caller has the features.
            unsafe { _mm512_setzero_ps() }
        }

        #[inline(always)]
        unsafe fn load(units: *const u32) -> __m512 {
            // SAFETY: the caller has the units.
            unsafe { _mm512_loadu_ps(units.cast()) }
        }

        #[inline(always)]
        unsafe fn broadcast(unit: *const u32) -> __m512 {
            // SAFETY: the caller has the unit.
            unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(*unit.cast())) }
        }

        #[inline(always)]
        unsafe fn store(vector: __m512, out: *mut u32) {
            // SAFETY: the caller has the place.
            unsafe { _mm512_storeu_ps(out.cast(), vector) }
        }

        #[inline(always)]
        unsafe fn store_some(vector: __m512, lanes: usize, out: *mut u32) {
            // SAFETY: the caller has the places; what is masked is not touched.
            unsafe {
                if lanes >= 16 {
                    return Self::store(vector, out);
                }
                _mm512_mask_storeu_ps(out.cast(), (1 << lanes) - 1, vector);
            }
        }

        #[inline(always)]
        unsafe fn add(a: __m512, b: __m512) -> __m512 {
            // SAFETY: the caller has the features.
            unsafe { _mm512_add_ps(a, b) }
        }

        #[inline(always)]
        unsafe fn sums([a, b, c, d]: [__m512; 4]) -> [f32; 4] {
            // SAFETY: the caller has the features.
            unsafe {
                // Of two and two, then of four, within 128-bit quarters; then the quarters.
                let ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                let low = _mm512_shuffle_ps::<0x44>(ab, cd);
                let s = _mm512_add_ps(low, _mm512_shuffle_ps::<0xee>(ab, cd));
                let upper = _mm512_extractf32x8_ps::<1>(s);
                let s = _mm256_add_ps(_mm512_castps512_ps256(s), upper);
                let s = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps::<1>(s));
                std::mem::transmute::<__m128, [f32; 4]>(s)
            }
        }

        #[inline(always)]
        unsafe fn transpose(square: &mut [__m512; 16]) {
            // SAFETY: the caller has the features.
            unsafe { transpose(square) }
        }

        #[inline(always)]
        unsafe fn prefetch_second(line: *const u8) {
            // SAFETY: prefetching may point anywhere.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
        }
    };
}

pub(super) use simd;

/// # Safety
///
/// The CPU has AVX-512 F.
#[inline(always)]
pub(super) unsafe fn transpose(square: &mut [__m512; 16]) {
    let r = *square;
    // SAFETY: the caller has the feature.
    unsafe {
        // Pairs of rows, then fours, within 128-bit quarters; then the quarters.
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut u = t;
        for i in 0..4 {
            u[4 * i] = _mm512_shuffle_ps::<0x44>(t[4 * i], t[4 * i + 2]);
            u[4 * i + 1] = _mm512_shuffle_ps::<0xee>(t[4 * i], t[4 * i + 2]);
            u[4 * i + 2] = _mm512_shuffle_ps::<0x44>(t[4 * i + 1], t[4 * i + 3]);
            u[4 * i + 3] = _mm512_shuffle_ps::<0xee>(t[4 * i + 1], t[4 * i + 3]);
        }
        for i in 0..4 {
            let low = _mm512_shuffle_f32x4::<0x88>(u[i], u[i + 4]);
            let high = _mm512_shuffle_f32x4::<0x88>(u[i + 8], u[i + 12]);
            square[i] = _mm512_shuffle_f32x4::<0x88>(low, high);
            square[i + 8] = _mm512_shuffle_f32x4::<0xdd>(low, high);
            let low = _mm512_shuffle_f32x4::<0xdd>(u[i], u[i + 4]);
            let high = _mm512_shuffle_f32x4::<0xdd>(u[i + 8], u[i + 12]);
            square[i + 4] = _mm512_shuffle_f32x4::<0x88>(low, high);
            square[i + 12] = _mm512_shuffle_f32x4::<0xdd>(low, high);
        }
    }
}

/// The elements of even or of odd places.
///
/// # Safety
///
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn turns(first: __m512, second: __m512, part: usize) -> __m512 {
    // SAFETY: the caller has the feature.
    unsafe {
        let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        let places = _mm512_add_epi32(even, _mm512_set1_epi32(part as i32));
        _mm512_permutex2var_ps(first, places, second)
    }
}

// SAFETY: callers have the features; each function touches the lanes that it names, at any alignment.
unsafe impl Simd for Avx512 {
    simd!(1, 2, 6);

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the features.
        unsafe { _mm512_fmadd_ps(a, b, sums) }
    }

    #[inline(always)]
    fn unit(values: [f32; 2]) -> u32 {
        values[0].to_bits()
    }
}

// SAFETY: as above.
unsafe impl Simd for Avx512Bf16 {
    simd!(2, 1, 6);

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the features; all 512-bit vectors are bits.
        unsafe {
            let (a, b) = (_mm512_castps_si512(a), _mm512_castps_si512(b));
            _mm512_dpbf16_ps(
                sums,
                std::mem::transmute::<__m512i, __m512bh>(a),
                std::mem::transmute::<__m512i, __m512bh>(b),
            )
        }
    }

    #[inline(always)]
    fn unit(values: [f32; 2]) -> u32 {
        values[0].to_bits() >> 16 | (values[1].to_bits() & 0xffff_0000)
    }
}

// SAFETY: as above.
unsafe impl Loads<bf16> for Avx512Bf16 {
    fn pack_from(self) -> usize {
        usize::MAX
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const bf16, _: usize) -> __m512 {
        // SAFETY: the caller has the one part.
        unsafe { Self::load_elements(elements) }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const bf16) -> __m512 {
        // SAFETY: the caller has the elements.
        unsafe { _mm512_loadu_ps(elements.cast()) }
    }
}

// SAFETY: as above.
unsafe impl Loads<f32> for Avx512 {
    fn pack_from(self) -> usize {
        19
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const f32, part: usize) -> __m512 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let first = Self::load_elements(elements);
            turns(first, Self::load_elements(elements.add(16)), part)
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const f32) -> __m512 {
        // SAFETY: the caller has the elements.
        unsafe { _mm512_loadu_ps(elements) }
    }
}

// SAFETY: as above.
unsafe impl Loads<f16> for Avx512 {
    fn pack_from(self) -> usize {
        19
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const f16, part: usize) -> __m512 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let first = Self::load_elements(elements);
            turns(first, Self::load_elements(elements.add(16)), part)
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const f16) -> __m512 {
        // SAFETY: the caller has the elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(elements.cast())) }
    }
}

// SAFETY: as above.
unsafe impl Loads<bf16> for Avx512 {
    fn pack_from(self) -> usize {
        self.pack_bf16_from
    }

    #[inline(always)]
    unsafe fn load_part(elements: *const bf16, part: usize) -> __m512 {
        // SAFETY: the caller has the elements of both parts.
        unsafe {
            let pairs = _mm512_loadu_si512(elements.cast());
            _mm512_castsi512_ps(if part == 0 {
                _mm512_slli_epi32::<16>(pairs)
            } else {
                _mm512_and_si512(pairs, _mm512_set1_epi32(!0xffff))
            })
        }
    }

    #[inline(always)]
    unsafe fn load_elements(elements: *const bf16) -> __m512 {
        // SAFETY: the caller has the elements.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(elements.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}
