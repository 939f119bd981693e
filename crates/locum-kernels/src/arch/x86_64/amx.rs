//! AMX: products of tiles, which are 16 rows of 64 bytes.
//!
//! A step multiplies 32 rows of weights, each 32 elements of where they are in memory, by up to 32 columns of
//! a panel: four sums of 16 × 16, so that each of the four tiles that a step reads is used twice. Sums are
//! `[row][column]`.
//!
//! A `bf16` token is one column. An `f32` token is three, whose sum it is exactly: each has eight bits of its
//! significand. Products of two `bf16` are exact in `f32`, so that this adds up what `f32` products would, in
//! three sums.
//!
//! The compiler does not use tiles, and so does not touch what is in them between two instructions.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

use half::bf16;

use super::avx512::{Avx512Bf16, simd, transpose};
use crate::arch::ahead::Ahead;
use crate::arch::dot::Call;
use crate::arch::entry::machine;
use crate::arch::padded_units;
use crate::arch::simd::{Loads, Simd};
use crate::operand::Element;

/// Proof that the CPU has AMX with `bf16` products, and AVX-512 with all that [`Avx512Bf16`] has, and that
/// this process may use tiles. A token takes so many columns of a panel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx<const COLUMNS: usize>(());

impl<const COLUMNS: usize> Amx<COLUMNS> {
    /// If this CPU has it, and the system lets this process use it.
    pub(crate) fn detect() -> Option<Self> {
        static USABLE: OnceLock<bool> = OnceLock::new();
        let usable = || Avx512Bf16::detect().is_some() && has_tiles() && may_use_tiles();
        USABLE.get_or_init(usable).then_some(Self(()))
    }
}

fn has_tiles() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

/// Linux saves tiles only for processes that have asked for it.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_ulong = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers, and changes nothing but what this process may use.
    unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        ) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

machine!(Amx<1>, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");
machine!(Amx<3>, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");

// SAFETY: callers have the features; each function touches the lanes that it names, at any alignment.
unsafe impl<const COLUMNS: usize> Simd for Amx<COLUMNS> {
    simd!(2, 1, MOST / COLUMNS);
    const COLUMNS: usize = COLUMNS;
    const ROUNDS: bool = COLUMNS == 1;
    const TILES: bool = true;

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the features.
        unsafe { Avx512Bf16::multiply_add(sums, a, b) }
    }

    #[inline(always)]
    fn unit(values: [f32; 2], column: usize) -> u32 {
        let [first, second] = values.map(|value| {
            if COLUMNS == 1 {
                value.to_bits()
            } else {
                part(value, column).to_bits()
            }
        });
        first >> 16 | (second & UPPER)
    }
}

/// The half of an `f32` that is a `bf16`.
const UPPER: u32 = 0xffff_0000;

/// One of the three `bf16` whose sum is a number.
fn part(value: f32, column: usize) -> f32 {
    let upper = |value: f32| f32::from_bits(value.to_bits() & UPPER);
    let first = upper(value);
    match column {
        _ if value.is_nan() => f32::NAN,
        0 => first,
        _ if value.is_infinite() => 0.0,
        1 => upper(value - first),
        _ => (value - first) - upper(value - first),
    }
}

/// [`part`] of each.
///
/// # Safety
///
/// The CPU has AVX-512 F and DQ.
#[inline(always)]
unsafe fn parts(values: __m512, column: usize) -> __m512 {
    const NAN: i32 = 0x81;
    const INFINITE: i32 = 0x18;
    // SAFETY: the caller has the features.
    unsafe {
        let upper = _mm512_castsi512_ps(_mm512_set1_epi32(UPPER as i32));
        let nan = _mm512_fpclass_ps_mask::<NAN>(values);
        let values = _mm512_mask_mov_ps(values, nan, _mm512_set1_ps(f32::NAN));
        let first = _mm512_and_ps(values, upper);
        if column == 0 {
            return first;
        }
        let finite = !_mm512_fpclass_ps_mask::<INFINITE>(values);
        let rest = _mm512_maskz_sub_ps(finite, values, first);
        let second = _mm512_and_ps(rest, upper);
        if column == 1 {
            second
        } else {
            _mm512_sub_ps(rest, second)
        }
    }
}

// SAFETY: as above.
unsafe impl<const COLUMNS: usize> Loads<bf16> for Amx<COLUMNS> {
    const PACK_FROM: usize = usize::MAX;

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

    #[inline(always)]
    unsafe fn dot(call: &Call<bf16>) {
        // SAFETY: passed on.
        unsafe {
            if call.tokens * COLUMNS <= EDGE {
                dot::<COLUMNS, 1>(call);
            } else {
                dot::<COLUMNS, 2>(call);
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_dot(rows: &[&[bf16]], out: *mut u32) {
        const { assert!(COLUMNS == 1) };
        // SAFETY: passed on.
        unsafe { pack::<Self, _>(rows, out) }
    }
}

// SAFETY: as above.
unsafe impl Loads<f32> for Amx<3> {
    const PACK_FROM: usize = usize::MAX;

    #[inline(always)]
    unsafe fn load_part(elements: *const f32, _: usize) -> __m512 {
        // SAFETY: the caller has the one part.
        unsafe { Self::load_elements(elements) }
    }

    /// As `bf16`, truncated.
    #[inline(always)]
    unsafe fn load_elements(elements: *const f32) -> __m512 {
        // SAFETY: the caller has the elements.
        unsafe { Self::column(elements, 0) }
    }

    #[inline(always)]
    unsafe fn pack_dot(rows: &[&[f32]], out: *mut u32) {
        // SAFETY: passed on.
        unsafe { pack::<Self, _>(rows, out) }
    }
}

/// Columns of a panel.
///
/// # Safety
///
/// Functions need the CPU features, and pointers to the elements.
unsafe trait Columns<T: Element>: Simd<Vector = __m512> {
    /// The units of one of a token's columns, from 32 elements.
    unsafe fn column(elements: *const T, column: usize) -> __m512;
}

// SAFETY: as above.
unsafe impl<const COLUMNS: usize> Columns<bf16> for Amx<COLUMNS> {
    #[inline(always)]
    unsafe fn column(elements: *const bf16, _: usize) -> __m512 {
        const { assert!(COLUMNS == 1) };
        // SAFETY: the caller has the elements.
        unsafe { _mm512_loadu_ps(elements.cast()) }
    }
}

// SAFETY: as above.
unsafe impl Columns<f32> for Amx<3> {
    #[inline(always)]
    unsafe fn column(elements: *const f32, column: usize) -> __m512 {
        const UPPER_HALVES: [u16; 32] = {
            let mut places = [0; 32];
            let mut i = 0;
            while i < 32 {
                places[i] = 2 * i as u16 + 1;
                i += 1;
            }
            places
        };
        // SAFETY: the caller has the features and the elements.
        unsafe {
            let first = parts(_mm512_loadu_ps(elements), column);
            let second = parts(_mm512_loadu_ps(elements.add(16)), column);
            let places = _mm512_loadu_si512(UPPER_HALVES.as_ptr().cast());
            let (first, second) = (_mm512_castps_si512(first), _mm512_castps_si512(second));
            _mm512_castsi512_ps(_mm512_permutex2var_epi16(first, places, second))
        }
    }
}

/// `[unit][row][column]`, the tail zero.
///
/// # Safety
///
/// The CPU has the features; rows have one length; `out` has what a panel of them takes.
#[inline(always)]
unsafe fn pack<S: Columns<T>, T: Element>(rows: &[&[T]], out: *mut u32) {
    let elements = rows.first().map_or(0, |row| row.len());
    let columns = rows.len() * S::COLUMNS;
    for step in 0..padded_units::<S>(elements) / S::LANES {
        let (first, last) = (step * DEPTH, elements.min((step + 1) * DEPTH));
        for start in (0..columns).step_by(EDGE) {
            let width = EDGE.min(columns - start);
            // SAFETY: rows have the elements, or a copy has them; columns are within a unit's.
            unsafe {
                let mut square = [S::zero(); 16];
                for (lanes, column) in square[..width].iter_mut().zip(start..) {
                    let row = rows[column / S::COLUMNS];
                    let column = column % S::COLUMNS;
                    *lanes = if last - first == DEPTH {
                        S::column(row.as_ptr().add(first), column)
                    } else {
                        let mut tail = [T::ZERO; DEPTH];
                        tail[..last - first].copy_from_slice(&row[first..last]);
                        S::column(tail.as_ptr(), column)
                    };
                }
                transpose(&mut square);
                for (unit, &lanes) in square.iter().enumerate() {
                    let unit = step * S::LANES + unit;
                    S::store_some(lanes, width, out.add(unit * columns + start));
                }
            }
        }
    }
}

/// Rows of a tile, and columns of one of sums.
const EDGE: usize = 16;
/// Elements of a row of a tile of weights.
const DEPTH: usize = 32;
/// Rows, and columns, of a step.
const MOST: usize = 2 * EDGE;
/// Rows whose sums are kept while all of them are multiplied by as much of a panel as the first cache holds.
const ROWS: usize = 64;
/// Elements of that part of a panel.
const BLOCK: usize = 16 * DEPTH;

/// Shapes of tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

impl Shapes {
    /// Sums in tiles 0 to 3, weights in 4 and 5, columns in 6 and 7.
    fn new(columns: usize) -> Self {
        let bytes = [EDGE.min(columns), columns.saturating_sub(EDGE)].map(|width| 4 * width as u16);
        let mut shapes = Self {
            palette: 1,
            start: 0,
            reserved: [0; 14],
            bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in [4, 5] {
            (shapes.bytes[tile], shapes.rows[tile]) = (2 * DEPTH as u16, EDGE as u8);
        }
        for (side, bytes) in bytes
            .into_iter()
            .enumerate()
            .filter(|&(_, bytes)| bytes > 0)
        {
            for tile in [0, 2, 6] {
                (shapes.bytes[tile + side], shapes.rows[tile + side]) = (bytes, EDGE as u8);
            }
        }
        shapes
    }
}

/// Sums of one tile.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Sums([[f32; EDGE]; EDGE]);

macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        asm!(
            concat!("tileloadd tmm", $tile, ", [{} + {}]"),
            in(reg) $from,
            in(reg) $stride,
            options(nostack, readonly, preserves_flags),
        )
    };
}

macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {
        asm!(
            concat!("tilestored [{} + {}], tmm", $tile),
            in(reg) $to,
            in(reg) $stride,
            options(nostack, preserves_flags),
        )
    };
}

macro_rules! zero {
    ($tile:literal) => {
        asm!(
            concat!("tilezero tmm", $tile),
            options(nostack, nomem, preserves_flags)
        )
    };
}

macro_rules! multiply_add {
    ($sums:literal, $weights:literal, $columns:literal) => {
        asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $weights, ", tmm", $columns),
            options(nostack, nomem, preserves_flags),
        )
    };
}

/// Weights of a step: where its first 16 rows are, and its others, and how far a row is from the next, in
/// bytes.
#[derive(Clone, Copy)]
struct Weights {
    halves: [*const bf16; 2],
    stride: usize,
}

/// A product with tiles of columns: one, or two.
///
/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says; there are at most as many columns as fit.
#[inline(always)]
unsafe fn dot<const COLUMNS: usize, const SIDES: usize>(call: &Call<bf16>) {
    let columns = call.tokens * COLUMNS;
    let shapes = Shapes::new(columns);
    let steps = call.elements.div_ceil(DEPTH);
    let mut ahead = call.ahead;
    let each = ahead
        .lines
        .div_ceil((steps * call.rows.div_ceil(MOST)).max(1));
    let mut sums = [[Sums([[0.0; EDGE]; EDGE]); 4]; ROWS / MOST];
    // SAFETY: steps are within rows and panel, or read a copy.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        for first in (0..call.rows).step_by(ROWS) {
            let last = call.rows.min(first + ROWS);
            for start in (0..call.elements).step_by(BLOCK) {
                for (row, sums) in (first..last).step_by(MOST).zip(&mut sums) {
                    part_of_rows::<SIDES>(call, columns, row, start, sums, &mut ahead, each);
                }
            }
            for (row, sums) in (first..last).step_by(MOST).zip(&sums) {
                finish::<COLUMNS, SIDES>(call, row, sums);
            }
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Adds up to [`BLOCK`] elements of up to [`MOST`] rows to their sums.
///
/// # Safety
///
/// As of [`dot`]; tiles have their shapes.
#[inline(always)]
unsafe fn part_of_rows<const SIDES: usize>(
    call: &Call<bf16>,
    columns: usize,
    row: usize,
    start: usize,
    sums: &mut [Sums; 4],
    ahead: &mut Ahead,
    each: usize,
) {
    const LINE: usize = size_of::<[f32; EDGE]>();
    let rows = MOST.min(call.rows - row);
    let last = call.elements.min(start + BLOCK);
    let stride = size_of::<bf16>() * call.elements;
    // SAFETY: steps are within rows and panel, or read a copy. Prefetching may point anywhere.
    unsafe {
        if start == 0 {
            zero!(0);
            zero!(2);
        } else {
            load!(0, &raw mut sums[0], LINE);
            load!(2, &raw mut sums[2], LINE);
        }
        if SIDES == 2 && start == 0 {
            zero!(1);
            zero!(3);
        } else if SIDES == 2 {
            load!(1, &raw mut sums[1], LINE);
            load!(3, &raw mut sums[3], LINE);
        }
        let from = call.weights.add(row * call.elements);
        for at in (start..last).step_by(DEPTH) {
            let lines = each.min(ahead.lines);
            for _ in 0..lines {
                Avx512Bf16::prefetch_second(ahead.start);
                ahead.start = ahead.start.wrapping_add(Ahead::LINE);
            }
            ahead.lines -= lines;
            let panel = call.panel.add(at / 2 * columns);
            if rows == MOST && at + DEPTH <= call.elements {
                let from = from.add(at);
                let halves = [from, from.add(EDGE * call.elements)];
                step::<SIDES>(Weights { halves, stride }, panel, columns);
            } else {
                let mut copy = [[bf16::ZERO; DEPTH]; MOST];
                let length = DEPTH.min(call.elements - at);
                for (row, copy) in copy[..rows].iter_mut().enumerate() {
                    let from = from.add(row * call.elements + at);
                    std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), length);
                }
                let halves = [0, EDGE].map(|row| copy[row].as_ptr());
                let stride = size_of_val(&copy[0]);
                step::<SIDES>(Weights { halves, stride }, panel, columns);
            }
        }
        store!(0, &raw mut sums[0], LINE);
        store!(2, &raw mut sums[2], LINE);
        if SIDES == 2 {
            store!(1, &raw mut sums[1], LINE);
            store!(3, &raw mut sums[3], LINE);
        }
    }
}

/// # Safety
///
/// As of [`dot`]; tiles have their shapes.
#[inline(always)]
unsafe fn step<const SIDES: usize>(weights: Weights, panel: *const u32, columns: usize) {
    let Weights { halves, stride } = weights;
    let units = size_of::<u32>() * columns;
    // SAFETY: the caller has rows and columns.
    unsafe {
        load!(4, halves[0], stride);
        load!(6, panel, units);
        multiply_add!(0, 4, 6);
        if SIDES == 2 {
            load!(7, panel.add(EDGE), units);
            multiply_add!(1, 4, 7);
        }
        load!(5, halves[1], stride);
        multiply_add!(2, 5, 6);
        if SIDES == 2 {
            multiply_add!(3, 5, 7);
        }
    }
}

/// Adds a token's columns, and puts them into their place.
///
/// # Safety
///
/// As of [`dot`].
#[inline(always)]
unsafe fn finish<const COLUMNS: usize, const SIDES: usize>(
    call: &Call<bf16>,
    row: usize,
    sums: &[Sums; 4],
) {
    // SAFETY: tokens and rows are within `out`.
    unsafe {
        for (half, sums) in sums.chunks(2).enumerate() {
            let row = row + half * EDGE;
            if row >= call.rows {
                break;
            }
            let mut of_columns = [[_mm512_setzero_ps(); EDGE]; 2];
            for (square, sums) in of_columns[..SIDES].iter_mut().zip(sums) {
                for (square, sums) in square.iter_mut().zip(&sums.0) {
                    *square = _mm512_loadu_ps(sums.as_ptr());
                }
                transpose(square);
            }
            let of_columns = of_columns.as_flattened();
            for token in 0..call.tokens {
                let of_token = &of_columns[token * COLUMNS..][..COLUMNS];
                // The smallest first.
                let mut sum = of_token[COLUMNS - 1];
                for &column in of_token[..COLUMNS - 1].iter().rev() {
                    sum = _mm512_add_ps(column, sum);
                }
                let out = call.out.add(token * call.rows + row).cast();
                Avx512Bf16::store_some(sum, call.rows - row, out);
            }
        }
    }
}

/// Multiplies and adds in tiles only; gives how many floating-point operations of a token that was.
pub(crate) fn peak<const COLUMNS: usize>(_: Amx<COLUMNS>, rounds: usize) -> f64 {
    let shapes = Shapes::new(MOST);
    // SAFETY: the machine has the instructions. What is in the tiles does not matter.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        for _ in 0..rounds {
            multiply_add!(0, 4, 6);
            multiply_add!(1, 4, 7);
            multiply_add!(2, 5, 6);
            multiply_add!(3, 5, 7);
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
    (rounds * 4 * EDGE * EDGE * DEPTH * 2) as f64 / COLUMNS as f64
}
