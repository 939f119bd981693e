//! Rotary positions (arXiv 2104.09864, equation 34).

use crate::arch::{self, Machine};
use crate::error::check_length;
use crate::norm::by_rows;
use crate::{Activations, ActivationsMut, KernelError};

/// The rotations of some tokens, for heads whose first elements are rotated in pairs.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// Elements of a head, of which twice as many as there are angles are rotated.
    pub head: usize,
    /// Angles of a token.
    pub angles: usize,
    /// `[tokens, angles]`
    pub cos: &'a [f32],
    /// `[tokens, angles]`
    pub sin: &'a [f32],
    /// Whether a pair's elements are neighbours, and not `angles` apart. They come out apart.
    pub interleaved: bool,
}

impl Rotary<'_> {
    pub(crate) fn run<M: Machine>(
        &self,
        machine: M,
        x: Activations<'_>,
        out: ActivationsMut<'_>,
    ) -> Result<(), KernelError> {
        let (head, angles) = (self.head, self.angles);
        let tokens = self.cos.len().checked_div(angles).unwrap_or(0);
        check_length("cos", &[tokens, angles], self.cos.len())?;
        check_length("sin", &[tokens, angles], self.sin.len())?;
        let of_token = x.len().checked_div(tokens).unwrap_or(0);
        let heads = of_token.checked_div(head).unwrap_or(0);
        check_length("x", &[tokens, heads, head], x.len())?;
        check_length("out", &[x.len()], out.len())?;
        if 2 * angles > head && heads > 0 {
            return Err(KernelError::Length {
                what: "cos",
                expected: head / 2 * tokens,
                found: self.cos.len(),
            });
        }
        let rotate = |row: usize, out: &mut [f32]| {
            let range = row * head..(row + 1) * head;
            let token = row / heads * angles..(row / heads + 1) * angles;
            let (cos, sin) = (&self.cos[token.clone()], &self.sin[token]);
            match x {
                Activations::F32(x) => self.rotate(&x[range], cos, sin, out),
                Activations::Bf16(x) => {
                    let mut wide = vec![0.0; head];
                    arch::widen(machine, &x[range], &mut wide);
                    self.rotate(&wide, cos, sin, out);
                }
            }
        };
        by_rows(machine, tokens * heads, head, rotate, out);
        Ok(())
    }

    fn rotate(&self, x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
        let angles = self.angles;
        let (first_out, rest) = out.split_at_mut(angles);
        let (second_out, still) = rest.split_at_mut(angles);
        still.copy_from_slice(&x[2 * angles..]);
        for i in 0..angles {
            let (first, second) = if self.interleaved {
                (x[2 * i], x[2 * i + 1])
            } else {
                (x[i], x[angles + i])
            };
            first_out[i] = first * cos[i] - second * sin[i];
            second_out[i] = second * cos[i] + first * sin[i];
        }
    }
}
