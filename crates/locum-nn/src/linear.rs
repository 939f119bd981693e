//! A linear projection in the checkpoint's layout.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::extension;
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
        let shape = y.dims();
        let rows = shape[..D - 1].iter().product();
        extension::cast(y.reshape([rows, shape[D - 1]]), dtype).reshape(shape)
    }
}

/// What three layers make of the same tokens, `[tokens, in]` to `[tokens, out]` each.
pub(crate) fn three(x: Tensor<2>, layers: [&Linear; 3]) -> [Tensor<2>; 3] {
    let dtype = x.dtype();
    let weights = layers.map(|layer| layer.weight.val());
    let types = weights.each_ref().map(Tensor::dtype);
    let alone = layers.iter().any(|layer| layer.bias.is_some());
    match extension::variant(&x.device(), dtype, &types) {
        Some(variant) if !alone => {
            extension::three_linears(x, weights, variant).map(|y| extension::cast(y, dtype))
        }
        _ => layers.map(|layer| layer.forward(x.clone())),
    }
}

/// `x·Wᵀ` with `x` `[…, in]` and `W` `[out, in]`: in their type where they share it, else in `f32`.
/// A kernel computes it where there is one.
pub(crate) fn product<const D: usize>(x: Tensor<D>, weight: Tensor<2>) -> Tensor<D> {
    let mut shape = x.dims();
    let inputs = shape[D - 1];
    let rows = shape[..D - 1].iter().product();
    shape[D - 1] = weight.dims()[0];
    let x = x.reshape([rows, inputs]);
    let dtype = if x.dtype() == weight.dtype() {
        x.dtype()
    } else {
        DType::F32
    };
    let y = match extension::variant(&x.device(), x.dtype(), &[weight.dtype()]) {
        Some(variant) => extension::cast(extension::linear(x, weight, variant), dtype),
        None => plain_product(x, weight, dtype),
    };
    y.reshape(shape)
}

/// The same by tensor operations, in the given type.
pub(crate) fn plain_product(x: Tensor<2>, weight: Tensor<2>, dtype: DType) -> Tensor<2> {
    x.cast(dtype).matmul(weight.cast(dtype).transpose())
}
