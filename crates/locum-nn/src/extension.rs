//! The CPU kernels as operations of Burn's CPU backend: its buffers are read where they are.
//!
//! The plain tensor operations beside each call are the reference, and what other devices run.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use locum_kernels::{
    Activation, Activations, ActivationsMut, Attention, ConstantRoute, GatedMlp, Heads,
    KernelError, Linear, ORDER_OF_SUMS, Rotary, Routes, Variant, Weights,
};

use crate::observer::OutputBuffer;

/// Operations that a backend may have.
#[backend_extension(Flex)]
pub(crate) trait Kernels: Backend {
    /// `[tokens, hidden]` to the same in `f32`, with `gate_up` `[rows, 2·intermediate, hidden]` and
    /// `down` `[rows, hidden, intermediate]`. `outputs`, where there is one, gets `[routes, hidden]`.
    fn gated_mlp(
        x: FloatTensor<Self>,
        gate_up: FloatTensor<Self>,
        down: FloatTensor<Self>,
        activation: Activation,
        routes: Routes,
        variant: Variant,
        outputs: Option<OutputBuffer>,
    ) -> FloatTensor<Self>;

    /// `[tokens, inputs]` to `[tokens, outputs]` in `f32`, with `weight` `[outputs, inputs]`.
    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        variant: Variant,
    ) -> FloatTensor<Self>;

    /// `[tokens, inputs]` to the three layers' `[tokens, outputs]` in `f32`, one after the other in one
    /// row of numbers.
    fn three_linears(
        x: FloatTensor<Self>,
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
        variant: Variant,
    ) -> FloatTensor<Self>;

    /// Adds `Σ w · c` over each token's routes to `sum` `[tokens, hidden]`, with constants `values`
    /// `[substituted, hidden]`.
    fn add_constants(
        sum: FloatTensor<Self>,
        values: FloatTensor<Self>,
        routes: Vec<ConstantRoute>,
        variant: Variant,
    ) -> FloatTensor<Self>;

    /// `[rows, size]` to the same, with `weight` `[size]`.
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
        variant: Variant,
    ) -> FloatTensor<Self>;

    /// `[tokens, heads, head]` to the same, with `cos` and `sin` `[tokens, angles]`.
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        interleaved: bool,
        variant: Variant,
    ) -> FloatTensor<Self>;

    /// `[rows, size]` to the same in the other type of activations.
    fn convert(x: FloatTensor<Self>, variant: Variant) -> FloatTensor<Self>;

    /// Queries `[heads, tokens, head]`, keys `[kv_heads, seen, head]`, values
    /// `[kv_heads, seen, size]` to `[tokens, heads·size]` in `f32`.
    fn attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f32,
        variant: Variant,
    ) -> FloatTensor<Self>;
}

/// The kernels for a product of these types on a device, if it has any.
///
/// A machine whose `LOCUM_CPU` names no variant has none: who starts a program reports that.
pub(crate) fn variant(device: &Device, x: DType, weights: &[DType]) -> Option<Variant> {
    let types = matches!(x, DType::F32 | DType::BF16)
        && weights
            .iter()
            .all(|weight| matches!(weight, DType::F32 | DType::F16 | DType::BF16));
    if !types || *device != Device::flex() {
        return None;
    }
    Variant::detect().ok()
}

/// The CPU kernels that this process uses, by name: the best that the machine has, or the ones that
/// the environment variable `LOCUM_CPU` names.
///
/// # Errors
///
/// A name that is none, or kernels that the machine cannot run; the message lists what there is.
pub fn cpu_variant() -> Result<&'static str, KernelError> {
    Variant::detect().map(|variant| variant.name())
}

/// What computes on a device with activations of a type: results of two machines can only be the same
/// where this is.
#[must_use]
pub fn kernels(device: &Device, activations: DType) -> String {
    match Variant::detect() {
        Ok(variant) if *device == Device::flex() => {
            let products = variant.products(activations == DType::BF16);
            format!("{products}, order of sums {ORDER_OF_SUMS}")
        }
        _ => format!("{device:?}, order of sums {ORDER_OF_SUMS}"),
    }
}

/// [`Kernels::gated_mlp`] on tensors.
pub(crate) fn gated_mlp(
    x: Tensor<2>,
    gate_up: Tensor<3>,
    down: Tensor<3>,
    activation: Activation,
    routes: Routes,
    variant: Variant,
    outputs: Option<OutputBuffer>,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::gated_mlp(
        x.into_dispatch(),
        gate_up.into_dispatch(),
        down.into_dispatch(),
        activation,
        routes,
        variant,
        outputs,
    ))
}

/// [`Kernels::linear`] on tensors.
pub(crate) fn linear(x: Tensor<2>, weight: Tensor<2>, variant: Variant) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        variant,
    ))
}

/// [`linear`] of three layers at once.
pub(crate) fn three_linears(
    x: Tensor<2>,
    weights: [Tensor<2>; 3],
    variant: Variant,
) -> [Tensor<2>; 3] {
    let tokens = x.dims()[0];
    let outputs = weights.each_ref().map(|weight| weight.dims()[0]);
    let [first, second, third] = weights;
    let all: Tensor<1> = Tensor::from_dispatch(<Dispatch as Kernels>::three_linears(
        x.into_dispatch(),
        first.into_dispatch(),
        second.into_dispatch(),
        third.into_dispatch(),
        variant,
    ));
    let mut start = 0;
    outputs.map(|outputs| {
        let range = start..start + tokens * outputs;
        start = range.end;
        all.clone().slice_dim(0, range).reshape([tokens, outputs])
    })
}

/// [`Kernels::add_constants`] on tensors.
pub(crate) fn add_constants(
    sum: Tensor<2>,
    values: Tensor<2>,
    routes: Vec<ConstantRoute>,
    variant: Variant,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::add_constants(
        sum.into_dispatch(),
        values.into_dispatch(),
        routes,
        variant,
    ))
}

/// [`Kernels::rms_norm`] on tensors.
pub(crate) fn rms_norm(
    x: Tensor<2>,
    weight: Tensor<1>,
    epsilon: f64,
    variant: Variant,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::rms_norm(
        x.into_dispatch(),
        weight.into_dispatch(),
        epsilon as f32,
        variant,
    ))
}

/// [`Kernels::rotary`] on tensors; `cos` and `sin` are `f32`.
pub(crate) fn rotary(
    x: Tensor<3>,
    cos: Tensor<2>,
    sin: Tensor<2>,
    interleaved: bool,
    variant: Variant,
) -> Tensor<3> {
    Tensor::from_dispatch(<Dispatch as Kernels>::rotary(
        x.into_dispatch(),
        cos.into_dispatch(),
        sin.into_dispatch(),
        interleaved,
        variant,
    ))
}

/// [`Tensor::cast`], on all cores where there is a kernel.
pub(crate) fn cast(x: Tensor<2>, dtype: DType) -> Tensor<2> {
    let other = matches!(
        (x.dtype(), dtype),
        (DType::F32, DType::BF16) | (DType::BF16, DType::F32)
    );
    match variant(&x.device(), x.dtype(), &[]) {
        Some(variant) if other => {
            Tensor::from_dispatch(<Dispatch as Kernels>::convert(x.into_dispatch(), variant))
        }
        _ => x.cast(dtype),
    }
}

/// [`Kernels::attention`] on tensors, whose types are those of activations.
pub(crate) fn attention(
    queries: Tensor<3>,
    keys: Tensor<3>,
    values: Tensor<3>,
    scale: f64,
    variant: Variant,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::attention(
        queries.into_dispatch(),
        keys.into_dispatch(),
        values.into_dispatch(),
        scale as f32,
        variant,
    ))
}

type Buffer = FloatTensor<Flex>;

impl Kernels for Flex {
    fn gated_mlp(
        x: Buffer,
        gate_up: Buffer,
        down: Buffer,
        activation: Activation,
        routes: Routes,
        variant: Variant,
        outputs: Option<OutputBuffer>,
    ) -> Buffer {
        let [x, gate_up, down] = [x, gate_up, down].map(|tensor| tensor.to_contiguous());
        let shape = x.layout().shape().clone();
        let mlp = GatedMlp {
            hidden: shape[1],
            intermediate: down.layout().shape()[2],
            activation,
            gate_up: weights(&gate_up),
            down: weights(&down),
        };
        let mut out = vec![0.0; shape.num_elements()];
        let x = activations(&x);
        let done = match outputs {
            None => variant.gated_mlp(&mlp, x, &routes, &mut out),
            Some(buffer) => {
                let mut outputs = buffer.take();
                outputs.resize(routes.len() * mlp.hidden, 0.0);
                let done = variant.gated_mlp_with_outputs(&mlp, x, &routes, &mut out, &mut outputs);
                buffer.put(outputs);
                done
            }
        };
        done.unwrap_or_else(|error| panic!("{error}"));
        tensor(out, [shape[0], shape[1]])
    }

    fn linear(x: Buffer, weight: Buffer, variant: Variant) -> Buffer {
        let [x, weight] = [x, weight].map(|tensor| tensor.to_contiguous());
        let tokens = x.layout().shape()[0];
        let outputs = weight.layout().shape()[0];
        let linear = Linear {
            inputs: weight.layout().shape()[1],
            outputs,
            weights: weights(&weight),
        };
        let mut out = vec![0.0; tokens * outputs];
        variant
            .linear(&linear, activations(&x), &mut out)
            .unwrap_or_else(|error| panic!("{error}"));
        tensor(out, [tokens, outputs])
    }

    fn three_linears(
        x: Buffer,
        first: Buffer,
        second: Buffer,
        third: Buffer,
        variant: Variant,
    ) -> Buffer {
        let x = x.to_contiguous();
        let layers = [first, second, third].map(|tensor| tensor.to_contiguous());
        let linears = layers.each_ref().map(|layer| Linear {
            inputs: layer.layout().shape()[1],
            outputs: layer.layout().shape()[0],
            weights: weights(layer),
        });
        let tokens = x.layout().shape()[0];
        let [first, second, _] = linears.map(|layer| tokens * layer.outputs);
        let length = tokens * linears.iter().map(|layer| layer.outputs).sum::<usize>();
        let mut out = vec![0.0; length];
        let (firsts, rest) = out.split_at_mut(first);
        let (seconds, thirds) = rest.split_at_mut(second);
        variant
            .linears(&linears, activations(&x), &mut [firsts, seconds, thirds])
            .unwrap_or_else(|error| panic!("{error}"));
        Buffer::from_data(TensorData::new(out, [length]))
    }

    fn add_constants(
        sum: Buffer,
        values: Buffer,
        routes: Vec<ConstantRoute>,
        variant: Variant,
    ) -> Buffer {
        // A tensor that is contiguous is not copied: a copy would be written to below.
        let mut sum = if sum.is_contiguous() {
            sum
        } else {
            sum.to_contiguous()
        };
        let values = values.to_contiguous();
        let hidden = values.layout().shape()[1];
        variant
            .add_constants(&routes, weights(&values), hidden, sum.storage_mut::<f32>())
            .unwrap_or_else(|error| panic!("{error}"));
        sum
    }

    fn rms_norm(x: Buffer, weight: Buffer, epsilon: f32, variant: Variant) -> Buffer {
        let [x, weight] = [x, weight].map(|tensor| tensor.to_contiguous());
        let (shape, dtype) = (x.layout().shape().to_vec(), x.dtype());
        written(shape, dtype, |out| {
            variant.rms_norm(activations(&x), weights(&weight), epsilon, out)
        })
    }

    fn rotary(x: Buffer, cos: Buffer, sin: Buffer, interleaved: bool, variant: Variant) -> Buffer {
        let [x, cos, sin] = [x, cos, sin].map(|tensor| tensor.to_contiguous());
        let shape: Vec<usize> = x.layout().shape().to_vec();
        let rotary = Rotary {
            head: shape[2],
            angles: cos.layout().shape()[1],
            cos: cos.as_slice::<f32>().unwrap_or_default(),
            sin: sin.as_slice::<f32>().unwrap_or_default(),
            interleaved,
        };
        written(shape, x.dtype(), |out| {
            variant.rotary(&rotary, activations(&x), out)
        })
    }

    fn convert(x: Buffer, variant: Variant) -> Buffer {
        let x = x.to_contiguous();
        let dtype = match x.dtype() {
            DType::F32 => DType::BF16,
            _ => DType::F32,
        };
        written(x.layout().shape().to_vec(), dtype, |out| {
            variant.convert(activations(&x), out)
        })
    }

    fn attention(
        queries: Buffer,
        keys: Buffer,
        values: Buffer,
        scale: f32,
        variant: Variant,
    ) -> Buffer {
        let [queries, keys, values] = [queries, keys, values].map(side_by_side);
        let sizes = |tensor: &Buffer| <[usize; 3]>::try_from(&tensor.layout().shape()[..]);
        let (Ok([heads, tokens, head]), Ok([kv_heads, seen, size])) =
            (sizes(&queries), sizes(&values))
        else {
            unreachable!("the tensors have three dimensions");
        };
        let attention = Attention {
            heads,
            kv_heads,
            tokens,
            seen,
            head,
            size,
            scale,
            queries: in_heads(&queries),
            keys: in_heads(&keys),
            values: in_heads(&values),
        };
        let mut out = vec![0.0; tokens * heads * size];
        variant
            .attention(&attention, &mut out)
            .unwrap_or_else(|error| panic!("{error}"));
        tensor(out, [tokens, heads * size])
    }
}

/// A new tensor that a kernel fills.
fn written(
    shape: Vec<usize>,
    dtype: DType,
    fill: impl FnOnce(ActivationsMut<'_>) -> Result<(), KernelError>,
) -> Buffer {
    let length = shape.iter().product();
    let (filled, tensor) = match dtype {
        DType::BF16 => {
            let mut out = vec![bf16::ZERO; length];
            let filled = fill(ActivationsMut::Bf16(&mut out));
            (filled, Buffer::from_data(TensorData::new(out, shape)))
        }
        _ => {
            let mut out = vec![0.0f32; length];
            let filled = fill(ActivationsMut::F32(&mut out));
            (filled, Buffer::from_data(TensorData::new(out, shape)))
        }
    };
    filled.unwrap_or_else(|error| panic!("{error}"));
    tensor
}

fn tensor(values: Vec<f32>, shape: [usize; 2]) -> Buffer {
    Buffer::from_data(TensorData::new(values, shape))
}

/// [`variant`] has checked the types; the tensors are contiguous.
fn weights(tensor: &Buffer) -> Weights<'_> {
    match tensor.dtype() {
        DType::F16 => Weights::F16(tensor.as_slice::<f16>().unwrap_or_default()),
        DType::BF16 => Weights::Bf16(tensor.as_slice::<bf16>().unwrap_or_default()),
        _ => Weights::F32(tensor.as_slice::<f32>().unwrap_or_default()),
    }
}

/// The same tensor with the elements of a row side by side, where they are not yet.
fn side_by_side(tensor: Buffer) -> Buffer {
    let strides = tensor.layout().strides();
    match strides {
        [heads, tokens, 1] if *heads >= 0 && *tokens >= 0 => tensor,
        _ => tensor.to_contiguous(),
    }
}

/// What [`side_by_side`] has made of a tensor of three dimensions.
fn in_heads(tensor: &Buffer) -> Heads<'_> {
    let (layout, start) = (tensor.layout(), tensor.layout().start_offset());
    let values = match tensor.dtype() {
        DType::BF16 => Activations::Bf16(tensor.storage::<bf16>().get(start..).unwrap_or_default()),
        _ => Activations::F32(tensor.storage::<f32>().get(start..).unwrap_or_default()),
    };
    Heads {
        values,
        head_stride: layout.strides()[0].unsigned_abs(),
        token_stride: layout.strides()[1].unsigned_abs(),
    }
}

fn activations(tensor: &Buffer) -> Activations<'_> {
    match tensor.dtype() {
        DType::BF16 => Activations::Bf16(tensor.as_slice::<bf16>().unwrap_or_default()),
        _ => Activations::F32(tensor.as_slice::<f32>().unwrap_or_default()),
    }
}
