//! Weighted sums of constants, the substituted experts' part.

use half::{bf16, f16};

use crate::error::check_length;
use crate::operand::Element;
use crate::{KernelError, Weights};

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

/// Adds `Σ w · c` over a token's routes to `out`: summed in `f64` in the order of the routes, to
/// which `out`'s value is added last, and rounded once.
///
/// Routes have to be ordered by token; only the tokens that have one are touched.
///
/// # Shapes
///
/// `constants` `[constants, hidden]`, `out` `[tokens, hidden]`.
///
/// # Errors
///
/// [`KernelError`] where a length is no multiple of `hidden`, or a route leads outside.
pub fn add_constants(
    routes: &[ConstantRoute],
    constants: Weights<'_>,
    hidden: usize,
    out: &mut [f32],
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
    match constants {
        Weights::F32(values) => add::<f32>(routes, values, hidden, out),
        Weights::F16(values) => add::<f16>(routes, values, hidden, out),
        Weights::Bf16(values) => add::<bf16>(routes, values, hidden, out),
    }
    Ok(())
}

fn add<T: Element>(routes: &[ConstantRoute], constants: &[T], hidden: usize, out: &mut [f32]) {
    let mut sums = vec![0.0f64; hidden];
    for of_token in routes.chunk_by(|a, b| a.token == b.token) {
        sums.fill(0.0);
        for route in of_token {
            let weight = f64::from(route.weight);
            let constant = &constants[route.row * hidden..][..hidden];
            for (sum, value) in sums.iter_mut().zip(constant) {
                *sum += weight * f64::from(value.widen());
            }
        }
        let out = &mut out[of_token[0].token * hidden..][..hidden];
        for (out, sum) in out.iter_mut().zip(&sums) {
            *out = (f64::from(*out) + sum) as f32;
        }
    }
}
