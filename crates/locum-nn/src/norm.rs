//! Root-mean-square normalisation.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::extension;
use crate::parameter::unloaded;

/// `y = x / √(mean(x²) + ε) · γ` over the last dimension (arXiv 1910.07467, equation 4).
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[size]`
    pub weight: Param<Tensor<1>>,
    /// ε, added to the mean of squares.
    #[module(skip)]
    pub epsilon: f64,
}

impl RmsNorm {
    /// A normalisation over `size` elements, to be loaded.
    #[must_use]
    pub fn new(size: usize, epsilon: f64, device: &Device) -> Self {
        Self {
            weight: unloaded([size], device),
            epsilon,
        }
    }

    /// Normalises in `f32`, and rounds once to the type of `x`.
    ///
    /// # Shapes
    ///
    /// `[…, size]` to the same.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype = x.dtype();
        let (weight, shape) = (self.weight.val(), x.dims());
        if let Some(variant) = extension::variant(&x.device(), dtype, &[weight.dtype()]) {
            let size = shape[D - 1];
            let x = x.reshape([shape.iter().product::<usize>() / size.max(1), size]);
            return extension::rms_norm(x, weight, self.epsilon, variant).reshape(shape);
        }
        let x = normalized(x, self.epsilon);
        (x * weight.cast(DType::F32).unsqueeze()).cast(dtype)
    }
}

/// `x / √(mean(x²) + ε)` over the last dimension, in `f32`: the same without a weight.
pub(crate) fn normalized<const D: usize>(x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    let x = x.cast(DType::F32);
    let mean_square = x.clone().powi_scalar(2).mean_dim(D - 1);
    x / (mean_square + epsilon).sqrt()
}
