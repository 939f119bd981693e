//! The CPU kernels as operations of Burn's CPU backend: its buffers are read where they are.
//!
//! The plain tensor operations beside each call are the reference, and what other devices run.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use locum_kernels::{
    Activation, Activations, GatedMlp, KernelError, Linear, Routes, Variant, Weights,
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
            let products = activations == DType::BF16 && variant.has_bf16_products();
            let products = if products { " with bf16 products" } else { "" };
            format!("{}{products}", variant.name())
        }
        _ => format!("{device:?}"),
    }
}

/// [`Kernels::gated_mlp`] on tensors.
pub(crate) fn gated_mlp(
    x: Tensor<2>,
    gate_up: Tensor<3>,
    down: Tensor<3>,
    routes: Routes,
    variant: Variant,
    outputs: Option<OutputBuffer>,
) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as Kernels>::gated_mlp(
        x.into_dispatch(),
        gate_up.into_dispatch(),
        down.into_dispatch(),
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

type Buffer = FloatTensor<Flex>;

impl Kernels for Flex {
    fn gated_mlp(
        x: Buffer,
        gate_up: Buffer,
        down: Buffer,
        routes: Routes,
        variant: Variant,
        outputs: Option<OutputBuffer>,
    ) -> Buffer {
        let [x, gate_up, down] = [x, gate_up, down].map(|tensor| tensor.to_contiguous());
        let shape = x.layout().shape().clone();
        let mlp = GatedMlp {
            hidden: shape[1],
            intermediate: down.layout().shape()[2],
            activation: Activation::Silu,
            gate_up: weights(&gate_up),
            down: weights(&down),
        };
        let mut out = vec![0.0; shape.num_elements()];
        let x = activations(&x);
        let done = match outputs {
            None => variant.gated_mlp(&mlp, x, &routes, &mut out),
            Some(buffer) => {
                let mut outputs = vec![0.0; routes.len() * mlp.hidden];
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

fn activations(tensor: &Buffer) -> Activations<'_> {
    match tensor.dtype() {
        DType::BF16 => Activations::Bf16(tensor.as_slice::<bf16>().unwrap_or_default()),
        _ => Activations::F32(tensor.as_slice::<f32>().unwrap_or_default()),
    }
}
