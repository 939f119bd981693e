//! Root-mean-square normalisation, and rounding of activations.
#![allow(unsafe_code)]

use half::bf16;

use crate::arch::{self, Machine};
use crate::error::check_length;
use crate::operand::Element;
use crate::shared::Shared;
use crate::{Activations, KernelError, Weights, tasks};

/// Where activations are written, in either type.
#[derive(Debug)]
pub enum ActivationsMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// The upper halves of 32-bit floats; what is written is rounded to the nearest, ties to even.
    Bf16(&'a mut [bf16]),
}

impl ActivationsMut<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }
}

/// Rows of a task, about so many elements.
const TASK: usize = 1 << 14;

/// `out = x / √(mean(x²) + ε) · γ`, row by row.
pub(crate) fn rms_norm<M: Machine>(
    machine: M,
    x: Activations<'_>,
    weight: Weights<'_>,
    epsilon: f32,
    out: ActivationsMut<'_>,
) -> Result<(), KernelError> {
    let size = weight.len();
    let rows = x.len().checked_div(size).unwrap_or(0);
    check_length("x", &[rows, size], x.len())?;
    check_length("out", &[rows, size], out.len())?;
    let weight: Vec<f32> = match weight {
        Weights::F32(weight) => weight.to_vec(),
        Weights::F16(weight) => weight.iter().map(|w| w.widen()).collect(),
        Weights::Bf16(weight) => weight.iter().map(|w| w.widen()).collect(),
    };
    let normalize = |row: usize, out: &mut [f32]| {
        let range = row * size..(row + 1) * size;
        match x {
            Activations::F32(x) => arch::normalize(machine, &x[range], &weight, epsilon, out),
            Activations::Bf16(x) => arch::normalize(machine, &x[range], &weight, epsilon, out),
        }
    };
    by_rows(machine, rows, size, normalize, out);
    Ok(())
}

/// Copies, and rounds where the types differ.
pub(crate) fn convert<M: Machine>(
    machine: M,
    x: Activations<'_>,
    out: ActivationsMut<'_>,
) -> Result<(), KernelError> {
    check_length("out", &[x.len()], out.len())?;
    let (rows, rest) = (x.len() / CONVERTED, x.len() % CONVERTED);
    let copy = |start: usize, out: &mut [f32]| {
        let range = start..start + out.len();
        match x {
            Activations::F32(x) => out.copy_from_slice(&x[range]),
            Activations::Bf16(x) => arch::widen(machine, &x[range], out),
        }
    };
    /// Elements of a row.
    const CONVERTED: usize = 1024;
    let row = |row: usize, out: &mut [f32]| copy(row * CONVERTED, out);
    let whole = rows * CONVERTED;
    match out {
        ActivationsMut::F32(out) => {
            let (rows_of, rest_of) = out.split_at_mut(whole);
            by_rows(machine, rows, CONVERTED, row, ActivationsMut::F32(rows_of));
            copy(whole, rest_of);
        }
        ActivationsMut::Bf16(out) => {
            let (rows_of, rest_of) = out.split_at_mut(whole);
            by_rows(machine, rows, CONVERTED, row, ActivationsMut::Bf16(rows_of));
            let mut values = [0.0; CONVERTED];
            copy(whole, &mut values[..rest]);
            arch::round(machine, &values[..rest], rest_of);
        }
    }
    Ok(())
}

/// Computes rows on all threads, and rounds them where that is asked for.
pub(crate) fn by_rows<M: Machine>(
    machine: M,
    rows: usize,
    size: usize,
    compute: impl Fn(usize, &mut [f32]) + Sync,
    out: ActivationsMut<'_>,
) {
    let rows_per_task = (TASK / size.max(1)).max(1);
    let tasks = rows.div_ceil(rows_per_task);
    // A row takes several passes, which count as much as multiplications.
    let work = 4 * rows * size;
    let rows_of = |task: usize| task * rows_per_task..rows.min((task + 1) * rows_per_task);
    match out {
        ActivationsMut::F32(out) => {
            let out = Shared::new(out);
            tasks::run(tasks, work, |(): &mut (), task| {
                for row in rows_of(task) {
                    // SAFETY: a row is of one task.
                    let out = unsafe { out.part(row * size..(row + 1) * size) };
                    compute(row, out);
                }
            });
        }
        ActivationsMut::Bf16(out) => {
            let out = Shared::new(out);
            tasks::run(tasks, work, |values: &mut Vec<f32>, task| {
                values.resize(size, 0.0);
                for row in rows_of(task) {
                    compute(row, values);
                    // SAFETY: a row is of one task.
                    let out = unsafe { out.part(row * size..(row + 1) * size) };
                    arch::round(machine, values, out);
                }
            });
        }
    }
}
