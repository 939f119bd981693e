//! A dense gated feed-forward.

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};

use crate::Linear;

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

    /// Computes some tokens.
    ///
    /// # Shapes
    ///
    /// `[…, hidden]` to the same.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let gate = silu(self.gate_proj.forward(x.clone()));
        self.down_proj.forward(gate * self.up_proj.forward(x))
    }
}
