//! Dense gated feed-forwards.

use burn::module::{Module, ModuleDisplay};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};

use crate::Linear;

/// A feed-forward that every token goes through.
pub trait Mlp: Module + ModuleDisplay {
    /// Computes some tokens.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    fn forward(&self, x: Tensor<2>) -> Tensor<2>;
}

/// `down(silu(gate·x) ⊙ up·x)` (SwiGLU, arXiv 2002.05202, equation 6).
#[derive(Module, Debug)]
pub struct GatedMlp {
    /// `[intermediate, hidden]`
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`
    pub up_proj: Linear,
    /// `[hidden, intermediate]`
    pub down_proj: Linear,
}

impl GatedMlp {
    /// A feed-forward, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, intermediate: usize, device: &Device) -> Self {
        Self {
            gate_proj: Linear::new(hidden, intermediate, device),
            up_proj: Linear::new(hidden, intermediate, device),
            down_proj: Linear::new(intermediate, hidden, device),
        }
    }
}

impl Mlp for GatedMlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let (gate, up) = (self.gate_proj.forward(x.clone()), self.up_proj.forward(x));
        self.down_proj.forward(swiglu(gate, up, None))
    }
}

/// `w2(silu(w1·x) ⊙ w3·x)`, where `w1·x` is at most a limit, and `w3·x` at most as far from zero
/// (DeepSeek-V4; transformers' `DeepseekV4MLP`).
#[derive(Module, Debug)]
pub struct ClampedMlp {
    /// The gate projection, `[intermediate, hidden]`.
    pub w1: Linear,
    /// The down projection, `[hidden, intermediate]`.
    pub w2: Linear,
    /// The up projection, `[intermediate, hidden]`.
    pub w3: Linear,
    #[module(skip)]
    limit: f64,
}

impl ClampedMlp {
    /// A feed-forward, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, intermediate: usize, limit: f64, device: &Device) -> Self {
        Self {
            w1: Linear::new(hidden, intermediate, device),
            w2: Linear::new(intermediate, hidden, device),
            w3: Linear::new(hidden, intermediate, device),
            limit,
        }
    }
}

impl Mlp for ClampedMlp {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let (gate, up) = (self.w1.forward(x.clone()), self.w3.forward(x));
        self.w2.forward(swiglu(gate, up, Some(self.limit)))
    }
}

/// `silu(gate) ⊙ up`, of a gate of at most `limit`, and an `up` at most as far from zero.
///
/// # Shapes
///
/// `[…, intermediate]`, all three.
pub(crate) fn swiglu<const D: usize>(
    gate: Tensor<D>,
    up: Tensor<D>,
    limit: Option<f64>,
) -> Tensor<D> {
    match limit {
        None => silu(gate) * up,
        Some(limit) => silu(gate.clamp_max(limit)) * up.clamp(-limit, limit),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, TensorData};

    use super::*;

    #[test]
    fn gate_is_clamped_above_and_up_on_both_sides() {
        let row = |values: [f32; 3]| {
            let data = TensorData::new(values.to_vec(), [1, 3]);
            Tensor::<2>::from_data(data, (&Device::flex(), DType::F32))
        };
        let silu = |x: f32| x / (1.0 + (-x).exp());
        let y = swiglu(row([9.0, -9.0, 1.0]), row([-7.0, 7.0, 0.5]), Some(2.0));
        let expected = [silu(2.0) * -2.0, silu(-9.0) * 2.0, silu(1.0) * 0.5];
        for (found, expected) in y.into_data().iter::<f32>().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
}
