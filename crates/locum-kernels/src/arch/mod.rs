//! What a kernel does, once per instruction set.
//!
//! A [`Machine`] is proof that the CPU has an instruction set. The functions here check lengths and
//! are safe; below them, [`dot`], [`outer`] and [`pack`] are written once over [`Simd`], and each
//! machine compiles them with its own instructions. AMX has a `dot` of its own, and packs for it.
#![allow(unsafe_code)]

mod ahead;
mod dot;
mod entry;
mod outer;
mod pack;
mod peak;
pub(crate) mod portable;
mod simd;
mod weighted;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86_64;

pub(crate) use ahead::{Ahead, Next};
pub(crate) use simd::{Loads, Simd};

use half::bf16;

use crate::operand::Element;
use crate::{Activation, Moments};

/// The functions of one instruction set.
///
/// # Safety
///
/// Each function needs the CPU features of the machine, of which a value is proof, and what its
/// safe counterpart in this module checks.
pub(crate) unsafe trait Machine: Simd + Send + Sync + 'static {
    unsafe fn dot<W: Element>(self, call: dot::Call<W>)
    where
        Self: Loads<W>;
    unsafe fn outer(self, call: outer::Call);
    unsafe fn weighted<T: Element>(self, call: weighted::Call<T>)
    where
        Self: Loads<T>;
    unsafe fn pack_dot<T: Element>(self, rows: &[&[T]], out: *mut u32)
    where
        Self: Loads<T>;
    unsafe fn pack_outer<T: Element>(self, rows: &[&[T]], out: *mut u32, stride: usize)
    where
        Self: Loads<T>;
    unsafe fn activate(self, activation: Activation, gate: &mut [f32], up: &[f32]);
    unsafe fn peak(self, rounds: usize) -> f32;
    unsafe fn read(self, memory: &[f32]) -> f32;
    unsafe fn accumulate(self, weight: f32, values: &[f32], sums: &mut [f32]);
    unsafe fn add_moments(self, moments: Moments<'_>, factors: &[f64], vectors: &[f32]);
    unsafe fn rescale(self, factor: f32, sums: &mut [f32], values: &[f32]);
    unsafe fn weigh(self, scores: &mut [f32], scale: f32, largest: &mut f32) -> f32;
    unsafe fn widen<T: Element>(self, from: &[T], to: &mut [f32]);
    unsafe fn round(self, from: &[f32], to: &mut [bf16]);
    unsafe fn normalize<T: Element>(self, x: &[T], weight: &[f32], epsilon: f32, out: &mut [f32]);
    unsafe fn accumulate_wide<T: Element>(self, weight: f32, values: &[T], sums: &mut [f64]);
}

/// Units that hold `elements` elements, whole steps of [`Simd::PARTS`] vectors of them.
pub(crate) fn padded_units<M: Simd>(elements: usize) -> usize {
    elements
        .div_ceil(M::UNIT)
        .next_multiple_of(M::LANES * M::PARTS)
}

/// Units that a panel of some tokens takes.
pub(crate) fn panel_units<M: Simd>(tokens: usize, elements: usize) -> usize {
    padded_units::<M>(elements) * tokens
}

/// Where [`pack_dot`] puts a unit of a token that is one of `tokens`.
#[inline(always)]
pub(crate) fn place_in_dot<M: Simd>(unit: usize, token: usize, tokens: usize) -> usize {
    if M::TILES {
        return unit * tokens + token;
    }
    let (step, within) = (unit / (M::LANES * M::PARTS), unit % (M::LANES * M::PARTS));
    let vector = (step * tokens + token) * M::PARTS + within % M::PARTS;
    vector * M::LANES + within / M::PARTS
}

/// Where [`pack_outer`] puts a unit, of so many with padding: those that [`dot`] adds up in one lane
/// follow each other, and lanes come in the order in which their sums are joined.
#[inline(always)]
pub(crate) fn place_in_outer<M: Simd>(unit: usize, padded: usize) -> usize {
    let (step, within) = (unit / (M::LANES * M::PARTS), unit % (M::LANES * M::PARTS));
    let lane = M::JOINED[within / M::PARTS];
    lane * (padded / M::LANES) + step * M::PARTS + within % M::PARTS
}

/// Packs tokens for [`dot`]: `[step][token][part][lane]`, or for AMX `[unit][token]`.
pub(crate) fn pack_dot<M: Machine + Loads<T>, T: Element>(
    machine: M,
    rows: &[&[T]],
    panel: &mut [u32],
) {
    let elements = rows.first().map_or(0, |row| row.len());
    assert!(rows.iter().all(|row| row.len() == elements));
    assert!(panel.len() >= panel_units::<M>(rows.len(), elements));
    // SAFETY: the machine has its features; rows have one length, the panel has room for them.
    unsafe { machine.pack_dot(rows, panel.as_mut_ptr()) }
}

/// Packs up to [`Simd::LANES`] rows for [`outer`], into columns of a panel that is `stride` wide:
/// `[unit][row]`, units in the order of [`place_in_outer`].
pub(crate) fn pack_outer<M: Machine + Loads<T>, T: Element>(
    machine: M,
    rows: &[&[T]],
    panel: &mut [u32],
    stride: usize,
) {
    let elements = rows.first().map_or(0, |row| row.len());
    assert!(rows.len() <= M::LANES && rows.iter().all(|row| row.len() == elements));
    let units = padded_units::<M>(elements);
    assert!(units == 0 || panel.len() >= (units - 1) * stride + rows.len());
    // SAFETY: the machine has its features; rows have one length, and the last of `units` vectors
    // that are `stride` apart ends within the panel.
    unsafe { machine.pack_outer(rows, panel.as_mut_ptr(), stride) }
}

/// `out[token][row] = Σ_k x[token][k] · w[row][k]` for a few tokens, which [`pack_dot`] has packed:
/// each weight is read once, straight from its row.
pub(crate) fn dot<M: Machine + Loads<W>, W: Element>(
    machine: M,
    panel: &[u32],
    tokens: usize,
    weights: &[W],
    elements: usize,
    next: Next<'_, W>,
    out: &mut [f32],
) {
    let rows = weights.len().checked_div(elements).unwrap_or(0);
    if elements == 0 || tokens == 0 {
        return out.fill(0.0);
    }
    assert!(tokens <= M::DOT_TOKENS && weights.len() == rows * elements);
    assert!(panel.len() >= panel_units::<M>(tokens, elements) && out.len() >= rows * tokens);
    // SAFETY: the machine has its features, and the lengths are what the call says.
    unsafe {
        machine.dot(dot::Call {
            panel: panel.as_ptr(),
            tokens,
            weights: weights.as_ptr(),
            rows,
            elements,
            after: next.after.map_or(std::ptr::null(), <[W]>::as_ptr),
            ahead: next.ahead(weights.len()),
            streams: next.streams(),
            out: out.as_mut_ptr(),
        });
    }
}

/// How [`outer`] adds up a sum's terms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Terms {
    /// One after the other.
    InTurn { units: usize },
    /// As [`dot`] does, of units in the order of [`place_in_outer`], with padding: bit by bit the same
    /// sums.
    InLanes { units: usize },
}

/// `left[token][lane]` and `right[token][lane]`: products of the tokens of a panel with the two
/// vectors of rows that `weights` `[unit][2 · LANES]` has.
pub(crate) fn outer<M: Machine>(
    machine: M,
    panel: &[u32],
    tokens: usize,
    weights: &[u32],
    terms: Terms,
    [left, right]: [&mut [f32]; 2],
    ahead: Ahead,
) {
    let units = match terms {
        Terms::InTurn { units } | Terms::InLanes { units } => units,
    };
    let lanes = match terms {
        Terms::InTurn { .. } => 1,
        Terms::InLanes { .. } => M::LANES,
    };
    assert!((1..=M::OUTER_TOKENS).contains(&tokens) && units % lanes == 0);
    assert!(panel.len() >= units * tokens && weights.len() >= units * 2 * M::LANES);
    assert!(left.len() >= tokens * M::LANES && right.len() >= tokens * M::LANES);
    // SAFETY: the machine has its features, and the lengths are what the call says. What is read
    // ahead is only prefetched.
    unsafe {
        machine.outer(outer::Call {
            panel: panel.as_ptr(),
            tokens,
            weights: weights.as_ptr(),
            lanes,
            units: units / lanes,
            left: left.as_mut_ptr(),
            right: right.as_mut_ptr(),
            ahead,
        });
    }
}

/// `out[query][column] = Σ_row weights[row][query] · values[row][column]` for a few queries, of rows that
/// are `stride` elements apart; `out` is `padded` wide. The sums are those of [`outer`] with terms
/// [in turn](Terms::InTurn).
pub(crate) fn weighted<M: Machine + Loads<T>, T: Element>(
    machine: M,
    weights: &[u32],
    queries: usize,
    values: &[T],
    [rows, columns, stride]: [usize; 3],
    out: &mut [f32],
    padded: usize,
) {
    if queries == 0 || columns == 0 {
        return;
    }
    if rows == 0 {
        return out.fill(0.0);
    }
    assert!(queries <= M::DOT_TOKENS && M::DOT_TOKENS <= 6 && M::UNIT == 1);
    assert!(weights.len() >= rows * queries && values.len() >= (rows - 1) * stride + columns);
    assert!(padded >= columns.next_multiple_of(M::LANES) && out.len() >= queries * padded);
    // SAFETY: the machine has its features, and the lengths are what the call says.
    unsafe {
        machine.weighted(weighted::Call {
            weights: weights.as_ptr(),
            queries,
            values: values.as_ptr(),
            rows,
            columns,
            stride,
            out: out.as_mut_ptr(),
            padded,
        });
    }
}

/// `gate ← activation(gate) · up`, rounded as this machine's products round.
pub(crate) fn activate<M: Machine>(
    machine: M,
    activation: Activation,
    gate: &mut [f32],
    up: &[f32],
) {
    // SAFETY: the machine has its features.
    unsafe { machine.activate(activation, gate, up) }
}

/// `sums += weight · values`.
pub(crate) fn accumulate<M: Machine>(machine: M, weight: f32, values: &[f32], sums: &mut [f32]) {
    // SAFETY: the machine has its features.
    unsafe { machine.accumulate(weight, values, sums) }
}

/// [`moments::add`](crate::moments::add).
pub(crate) fn add_moments<M: Machine>(
    machine: M,
    moments: Moments<'_>,
    factors: &[f64],
    vectors: &[f32],
) {
    // SAFETY: the machine has its features.
    unsafe { machine.add_moments(moments, factors, vectors) }
}

/// `sums ← factor · sums + values`.
pub(crate) fn rescale<M: Machine>(machine: M, factor: f32, sums: &mut [f32], values: &[f32]) {
    // SAFETY: the machine has its features.
    unsafe { machine.rescale(factor, sums, values) }
}

/// [`activation::weigh`](crate::activation::weigh).
pub(crate) fn weigh<M: Machine>(
    machine: M,
    scores: &mut [f32],
    scale: f32,
    largest: &mut f32,
) -> f32 {
    // SAFETY: the machine has its features.
    unsafe { machine.weigh(scores, scale, largest) }
}

/// Copies numbers as `f32`.
pub(crate) fn widen<M: Machine, T: Element>(machine: M, from: &[T], to: &mut [f32]) {
    // SAFETY: the machine has its features.
    unsafe { machine.widen(from, to) }
}

/// Copies numbers, rounded to the nearest.
pub(crate) fn round<M: Machine>(machine: M, from: &[f32], to: &mut [bf16]) {
    // SAFETY: the machine has its features.
    unsafe { machine.round(from, to) }
}

/// `out = x / √(mean(x²) + ε) · weight`.
pub(crate) fn normalize<M: Machine, T: Element>(
    machine: M,
    x: &[T],
    weight: &[f32],
    epsilon: f32,
    out: &mut [f32],
) {
    // SAFETY: the machine has its features.
    unsafe { machine.normalize(x, weight, epsilon, out) }
}

/// `sums += weight · values`, whose products are exact.
pub(crate) fn accumulate_wide<M: Machine, T: Element>(
    machine: M,
    weight: f32,
    values: &[T],
    sums: &mut [f64],
) {
    // SAFETY: the machine has its features.
    unsafe { machine.accumulate_wide(weight, values, sums) }
}

/// Multiplies and adds in registers only; gives how many floating-point operations that was.
pub(crate) fn peak<M: Machine>(machine: M, rounds: usize) -> f64 {
    // SAFETY: the machine has its features.
    std::hint::black_box(unsafe { machine.peak(rounds) });
    (rounds * peak::SUMS * M::LANES * M::UNIT * 2) as f64
}

/// Reads memory, and gives what its numbers add up to, but for the last few.
pub(crate) fn read<M: Machine>(machine: M, memory: &[f32]) -> f32 {
    // SAFETY: the machine has its features.
    unsafe { machine.read(memory) }
}
