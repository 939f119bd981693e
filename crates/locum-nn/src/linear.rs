//! A linear projection in the checkpoint's layout.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::parameter::unloaded;

/// `y = x·Wᵀ + b`.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`
    pub weight: Param<Tensor<2>>,
    /// `[out]`
    pub bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// A projection without bias, to be loaded.
    #[must_use]
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self {
            weight: unloaded([outputs, inputs], device),
            bias: None,
        }
    }

    /// The same with a bias.
    #[must_use]
    pub fn with_bias(self, device: &Device) -> Self {
        let outputs = self.weight.lazy_shape()[0];
        Self {
            bias: Some(unloaded([outputs], device)),
            ..self
        }
    }

    /// Projects.
    ///
    /// # Shapes
    ///
    /// `[…, in]` to `[…, out]`, in the type of `x`. Where the weights have another type, the
    /// product is computed in `f32` and rounded once.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype = x.dtype();
        let y = product(x, self.weight.val());
        let y = match &self.bias {
            Some(bias) => {
                let bias = bias.val().cast(y.dtype());
                y + bias.unsqueeze()
            }
            None => y,
        };
        y.cast(dtype)
    }
}

/// `x·Wᵀ` with `x` `[…, in]` and `W` `[out, in]`: in their type where they share it, else in `f32`.
pub(crate) fn product<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let (x, weight) = if x.dtype() == weight.dtype() {
        (x, weight)
    } else {
        (x.cast(DType::F32), weight.cast(DType::F32))
    };
    let mut shape = x.dims();
    let inputs = shape[D - 1];
    let rows = shape[..D - 1].iter().product();
    shape[D - 1] = weight.dims()[0];
    x.reshape([rows, inputs])
        .matmul(weight.transpose())
        .reshape(shape)
}
