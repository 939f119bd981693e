//! AMX: products of tiles, which are 16 rows of 64 bytes.
//!
//! Where many tokens are multiplied with the same weights, a step is of 32 rows, straight from where they are
//! in memory, 32 elements of each, and of up to 32 columns of a panel, which are tokens: four sums of 16 × 16,
//! so that each of the four tiles that a step reads is used twice. Where weights stream, it is of 16 rows, and
//! asks for what is some steps ahead. Sums are `[row][column]`, and add up in one order.
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
use crate::arch::simd::{Loads, Simd};

/// Proof that the CPU has AMX with `bf16` products, and AVX-512 with all that [`Avx512Bf16`] has, and that
/// this process may use tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
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
    // SAFETY: the call takes two numbers, and touches no memory. From then on, the process and those that it
    // forks may use tiles, and its threads need alternate signal stacks with room for them (11 KiB), which
    // Rust's are; where one is smaller, the system refuses.
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

machine!(Amx, "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16");

// SAFETY: callers have the features; each function touches the lanes that it names, at any alignment.
unsafe impl Simd for Amx {
    simd!(2, 1, MOST);
    const TILES: bool = true;

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the features.
        unsafe { Avx512Bf16::multiply_add(sums, a, b) }
    }

    #[inline(always)]
    fn unit(values: [f32; 2]) -> u32 {
        Avx512Bf16::unit(values)
    }
}

// SAFETY: as above.
unsafe impl Loads<bf16> for Amx {
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

    #[inline(always)]
    unsafe fn dot(call: &Call<bf16>) {
        // SAFETY: passed on.
        unsafe {
            if call.tokens <= EDGE {
                dot::<1>(call);
            } else {
                dot::<2>(call);
            }
        }
    }

    #[inline(always)]
    unsafe fn pack_dot(rows: &[&[bf16]], out: *mut u32) {
        // SAFETY: passed on.
        unsafe { pack(rows, out) }
    }
}

/// `[unit][row]`, the tail zero.
///
/// # Safety
///
/// The CPU has the features; rows have one length; `out` has what a panel of them takes.
#[inline(always)]
unsafe fn pack(rows: &[&[bf16]], out: *mut u32) {
    let elements = rows.first().map_or(0, |row| row.len());
    for step in 0..elements.div_ceil(DEPTH) {
        let (first, last) = (step * DEPTH, elements.min((step + 1) * DEPTH));
        for (start, tile) in (0..).step_by(EDGE).zip(rows.chunks(EDGE)) {
            // SAFETY: rows have the elements; a unit has a column for each row.
            unsafe {
                let mut square = [_mm512_setzero_ps(); EDGE];
                for (lanes, row) in square.iter_mut().zip(tile) {
                    let row = row.as_ptr().add(first);
                    *lanes = if last - first == DEPTH {
                        Amx::load_elements(row)
                    } else {
                        Amx::load_some(row, last - first)
                    };
                }
                transpose(&mut square);
                for (unit, &lanes) in square.iter().enumerate() {
                    let place = (step * EDGE + unit) * rows.len() + start;
                    Amx::store_some(lanes, tile.len(), out.add(place));
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

/// From row to row of a tile's sums, in bytes.
const LINE: usize = size_of::<[f32; EDGE]>();

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

/// A tile of weights that are not all there.
#[repr(C, align(64))]
struct Rest([[bf16; DEPTH]; EDGE]);

impl Rest {
    const ZERO: Self = Self([[bf16::ZERO; DEPTH]; EDGE]);
}

/// 16 rows of weights, of 32 elements each.
struct Tile {
    first: *const bf16,
    /// From row to row, in bytes.
    stride: usize,
}

impl Tile {
    /// From `row` and `element` on: from where they are, or a copy with zeros where the matrix ends.
    ///
    /// # Safety
    ///
    /// The call's weights are there; they have the element, but perhaps not the row.
    #[inline(always)]
    unsafe fn new(call: &Call<bf16>, [row, element]: [usize; 2], copy: &mut Rest) -> Self {
        let first = call.weights.wrapping_add(row * call.elements + element);
        if row + EDGE <= call.rows && element + DEPTH <= call.elements {
            let stride = size_of::<bf16>() * call.elements;
            return Self { first, stride };
        }
        *copy = Rest::ZERO;
        let rows = EDGE.min(call.rows.saturating_sub(row));
        let length = DEPTH.min(call.elements - element);
        for (row, copy) in copy.0[..rows].iter_mut().enumerate() {
            // SAFETY: the matrix has these elements.
            unsafe {
                let from = first.add(row * call.elements);
                std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), length);
            }
        }
        Self {
            first: copy.0.as_ptr().cast(),
            stride: size_of::<[bf16; DEPTH]>(),
        }
    }
}

/// A product with up to 16 or up to 32 columns of a panel: one side of sums, or two.
///
/// # Safety
///
/// The CPU has the features, pointers have what [`Call`] says; there are at most as many columns.
#[inline(always)]
unsafe fn dot<const SIDES: usize>(call: &Call<bf16>) {
    let shapes = Shapes::new(call.tokens);
    let steps = call.elements.div_ceil(DEPTH) * call.rows.div_ceil(MOST);
    let mut ahead = call.ahead;
    let each = ahead.lines.div_ceil(steps.max(1));
    let mut sums = [[Sums([[0.0; EDGE]; EDGE]); 4]; ROWS / MOST];
    // SAFETY: passed on; tiles have their shapes.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        for first in (0..call.rows).step_by(ROWS) {
            let rows = (first..call.rows.min(first + ROWS)).step_by(MOST);
            if call.streams {
                for (row, sums) in rows.clone().zip(&mut sums) {
                    let (upper, lower) = sums.split_at_mut(2);
                    stream::<SIDES>(call, row, upper);
                    stream::<SIDES>(call, row + EDGE, lower);
                }
            } else {
                for start in (0..call.elements).step_by(BLOCK) {
                    for (row, sums) in rows.clone().zip(&mut sums) {
                        block::<SIDES>(call, [row, start], sums, &mut ahead, each);
                    }
                }
            }
            for (row, sums) in rows.zip(&sums) {
                finish::<SIDES>(call, row, sums);
            }
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Sums of up to 16 rows, which come from memory.
///
/// # Safety
///
/// As of [`dot`]; tiles have their shapes.
#[inline(always)]
unsafe fn stream<const SIDES: usize>(call: &Call<bf16>, row: usize, sums: &mut [Sums]) {
    /// Elements that a row is read ahead by: the CPU's own prefetching is late where so many rows are read
    /// at once.
    const AHEAD: usize = 4 * DEPTH;
    if row >= call.rows {
        return;
    }
    let units = size_of::<u32>() * call.tokens;
    let here = call.weights.wrapping_add(row * call.elements);
    let next = if row + EDGE < call.rows || call.after.is_null() {
        here.wrapping_add(EDGE * call.elements)
    } else {
        call.after
    };
    let mut copy = Rest::ZERO;
    // SAFETY: the panel has whole steps. Prefetching may point anywhere.
    unsafe {
        zero!(0);
        if SIDES == 2 {
            zero!(1);
        }
        for element in (0..call.elements).step_by(DEPTH) {
            let weights = Tile::new(call, [row, element], &mut copy);
            let ahead = match (element + AHEAD).checked_sub(call.elements) {
                None => here.wrapping_add(element + AHEAD),
                Some(over) => next.wrapping_add(over),
            };
            for row in 0..EDGE {
                let line = ahead.wrapping_add(row * call.elements);
                _mm_prefetch::<_MM_HINT_T0>(line.cast());
            }
            let panel = call.panel.add(element / 2 * call.tokens);
            load!(4, weights.first, weights.stride);
            load!(6, panel, units);
            multiply_add!(0, 4, 6);
            if SIDES == 2 {
                load!(7, panel.add(EDGE), units);
                multiply_add!(1, 4, 7);
            }
        }
        store!(0, &raw mut sums[0], LINE);
        if SIDES == 2 {
            store!(1, &raw mut sums[1], LINE);
        }
    }
}

/// Adds up to [`BLOCK`] elements of up to [`MOST`] rows to their sums.
///
/// # Safety
///
/// As of [`dot`]; tiles have their shapes.
#[inline(always)]
unsafe fn block<const SIDES: usize>(
    call: &Call<bf16>,
    [row, start]: [usize; 2],
    sums: &mut [Sums; 4],
    ahead: &mut Ahead,
    each: usize,
) {
    let units = size_of::<u32>() * call.tokens;
    let last = call.elements.min(start + BLOCK);
    let mut copies = [Rest::ZERO; 2];
    // SAFETY: the panel has whole steps. Prefetching may point anywhere.
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
        for element in (start..last).step_by(DEPTH) {
            let lines = each.min(ahead.lines);
            for _ in 0..lines {
                Amx::prefetch_second(ahead.start);
                ahead.start = ahead.start.wrapping_add(Ahead::LINE);
            }
            ahead.lines -= lines;
            let upper = Tile::new(call, [row, element], &mut copies[0]);
            let lower = Tile::new(call, [row + EDGE, element], &mut copies[1]);
            let panel = call.panel.add(element / 2 * call.tokens);
            load!(4, upper.first, upper.stride);
            load!(6, panel, units);
            multiply_add!(0, 4, 6);
            if SIDES == 2 {
                load!(7, panel.add(EDGE), units);
                multiply_add!(1, 4, 7);
            }
            load!(5, lower.first, lower.stride);
            multiply_add!(2, 5, 6);
            if SIDES == 2 {
                multiply_add!(3, 5, 7);
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

/// Puts sums into their place.
///
/// # Safety
///
/// As of [`dot`].
#[inline(always)]
unsafe fn finish<const SIDES: usize>(call: &Call<bf16>, row: usize, sums: &[Sums; 4]) {
    // SAFETY: tokens and rows are within `out`.
    unsafe {
        for (half, sums) in sums.chunks(2).enumerate() {
            let row = row + half * EDGE;
            if row >= call.rows {
                break;
            }
            for (side, sums) in sums[..SIDES].iter().enumerate() {
                let mut square = [_mm512_setzero_ps(); EDGE];
                for (lanes, sums) in square.iter_mut().zip(&sums.0) {
                    *lanes = _mm512_loadu_ps(sums.as_ptr());
                }
                transpose(&mut square);
                for (&lanes, token) in square.iter().zip(side * EDGE..call.tokens) {
                    let out = call.out.add(token * call.rows + row).cast();
                    Amx::store_some(lanes, call.rows - row, out);
                }
            }
        }
    }
}

/// Multiplies and adds in tiles only; gives how many floating-point operations that was.
pub(crate) fn peak(_: Amx, rounds: usize) -> f64 {
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
    (rounds * 4 * EDGE * EDGE * DEPTH * 2) as f64
}
