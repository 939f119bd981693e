//! Weighted sums of constants, the substituted experts' part.
#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::arch::{self, Machine};
use crate::error::check_length;
use crate::operand::Element;
use crate::shared::Shared;
use crate::{KernelError, Weights, tasks};

/// A route that leads to a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantRoute {
    /// The token.
    pub token: usize,
    /// The row among the constants.
    pub row: usize,
    /// The router weight.
    pub weight: f32,
}

/// Tokens of a task.
const TOKENS: usize = 16;

pub(crate) fn check(
    routes: &[ConstantRoute],
    constants: Weights<'_>,
    hidden: usize,
    out: &[f32],
) -> Result<(), KernelError> {
    let tokens = out.len().checked_div(hidden).unwrap_or(0);
    let rows = constants.len().checked_div(hidden).unwrap_or(0);
    check_length("out", &[tokens, hidden], out.len())?;
    check_length("constants", &[rows, hidden], constants.len())?;
    for route in routes {
        if route.row >= rows {
            return Err(KernelError::Constant {
                row: route.row,
                constants: rows,
            });
        }
        if route.token >= tokens {
            return Err(KernelError::Token {
                row: route.row,
                token: route.token,
                tokens,
            });
        }
    }
    Ok(())
}

pub(crate) fn add<M: Machine>(
    machine: M,
    routes: &[ConstantRoute],
    constants: Weights<'_>,
    hidden: usize,
    out: &mut [f32],
) {
    match constants {
        Weights::F32(values) => add_of::<M, f32>(machine, routes, values, hidden, out),
        Weights::F16(values) => add_of::<M, f16>(machine, routes, values, hidden, out),
        Weights::Bf16(values) => add_of::<M, bf16>(machine, routes, values, hidden, out),
    }
}

fn add_of<M: Machine, T: Element>(
    machine: M,
    routes: &[ConstantRoute],
    constants: &[T],
    hidden: usize,
    out: &mut [f32],
) {
    let of_tokens: Vec<&[ConstantRoute]> = routes.chunk_by(|a, b| a.token == b.token).collect();
    // Tasks have tokens of their own only where each token's routes are in one place.
    let in_order = of_tokens.is_sorted_by(|a, b| a[0].token < b[0].token);
    let per_task = if in_order {
        TOKENS
    } else {
        of_tokens.len().max(1)
    };
    let out = Shared::new(out);
    tasks::run(
        of_tokens.len().div_ceil(per_task),
        routes.len() * hidden,
        |sums: &mut Vec<f64>, task| {
            sums.resize(hidden, 0.0);
            let first = task * per_task;
            let last = of_tokens.len().min(first + per_task);
            for of_token in &of_tokens[first..last] {
                sums.fill(0.0);
                for route in *of_token {
                    let constant = &constants[route.row * hidden..][..hidden];
                    arch::accumulate_wide(machine, route.weight, constant, sums);
                }
                let token = of_token[0].token;
                // SAFETY: tasks have tokens of their own.
                let out = unsafe { out.part(token * hidden..(token + 1) * hidden) };
                for (out, sum) in out.iter_mut().zip(&*sums) {
                    *out = (f64::from(*out) + sum) as f32;
                }
            }
        },
    );
}
