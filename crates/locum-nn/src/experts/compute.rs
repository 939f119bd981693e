//! The retained experts' part: a kernel where there is one, else plain tensor operations.

use burn::module::Param;
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use locum_kernels::{Activation, Routes};
use locum_substitution::TokenWeight;

use crate::extension;
use crate::linear::plain_product;
use crate::mlp::swiglu;
use crate::observer::OutputBuffer;

/// `Σ w · down(silu(gate·x) ⊙ up·x)` in `f32`. `None` where no token goes to any expert. `limit`
/// bounds `gate·x` and `up·x`.
/// `outputs`, where there is one, gets what each route's expert gives before it is weighted.
///
/// # Shapes
///
/// `x` `[tokens, hidden]`, `gate_up` `[retained, 2·intermediate, hidden]`, `down`
/// `[retained, hidden, intermediate]`; `routes` has the tokens of each retained row. Gives
/// `[tokens, hidden]`, and `outputs` `[routes, hidden]`.
pub(super) fn retained_experts(
    x: Tensor<2>,
    routes: &[Vec<TokenWeight>],
    gate_up: &Param<Tensor<3>>,
    down: &Param<Tensor<3>>,
    limit: Option<f64>,
    outputs: Option<&OutputBuffer>,
) -> Option<Tensor<2>> {
    if routes.iter().all(Vec::is_empty) {
        return None;
    }
    let (gate_up, down) = (gate_up.val(), down.val());
    let types = [gate_up.dtype(), down.dtype()];
    let Some(variant) = extension::variant(&x.device(), x.dtype(), &types) else {
        return Some(plain(x, routes, &gate_up, &down, limit, outputs));
    };
    let rows = routes
        .iter()
        .map(|row| row.iter().map(|route| (route.token, route.weight)));
    let routes = Routes::from_rows(rows);
    let outputs = outputs.cloned();
    let activation = match limit {
        None => Activation::Silu,
        Some(limit) => Activation::ClampedSilu {
            limit: limit as f32,
        },
    };
    Some(extension::gated_mlp(
        x, gate_up, down, activation, routes, variant, outputs,
    ))
}

/// The same by tensor operations: a product per expert that some token goes to.
pub(super) fn plain(
    x: Tensor<2>,
    routes: &[Vec<TokenWeight>],
    gate_up: &Tensor<3>,
    down: &Tensor<3>,
    limit: Option<f64>,
    outputs: Option<&OutputBuffer>,
) -> Tensor<2> {
    let device = x.device();
    let intermediate = down.dims()[2];
    let product = |x: Tensor<2>, packed: &Tensor<3>, row| {
        let same = x.dtype() == packed.dtype();
        let dtype = if same { x.dtype() } else { DType::F32 };
        plain_product(x, matrix(packed, row), dtype)
    };
    let mut sum = Tensor::zeros(x.dims(), (&device, DType::F32));
    let mut of_routes = outputs.map(OutputBuffer::take).unwrap_or_default();
    of_routes.clear();
    for (row, tokens) in routes.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
        let chosen = indices(tokens, &device);
        let gate_up_x = product(x.clone().select(0, chosen.clone()), gate_up, row);
        let gate = gate_up_x.clone().slice_dim(1, 0..intermediate);
        let up = gate_up_x.slice_dim(1, intermediate..2 * intermediate);
        let y = product(swiglu(gate, up, limit), down, row).cast(DType::F32);
        if outputs.is_some() {
            of_routes.extend(y.to_data().iter::<f32>());
        }
        sum = sum.select_assign(
            0,
            chosen,
            y * router_weights(tokens, &device),
            IndexingUpdateOp::Add,
        );
    }
    if let Some(outputs) = outputs {
        outputs.put(of_routes);
    }
    sum
}

/// One expert's matrix.
fn matrix(packed: &Tensor<3>, row: usize) -> Tensor<2> {
    packed.clone().slice_dim(0, row..row + 1).squeeze_dim(0)
}

/// `[tokens]`
fn indices(tokens: &[TokenWeight], device: &Device) -> Tensor<1, Int> {
    let ids: Vec<i64> = tokens.iter().map(|t| t.token as i64).collect();
    let length = ids.len();
    Tensor::from_data(TensorData::new(ids, [length]), device)
}

/// `[tokens, 1]`
fn router_weights(tokens: &[TokenWeight], device: &Device) -> Tensor<2> {
    let weights: Vec<f32> = tokens.iter().map(|t| t.weight).collect();
    let length = weights.len();
    Tensor::from_data(TensorData::new(weights, [length, 1]), (device, DType::F32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u32, shape: [usize; 3], dtype: DType) -> Tensor<3> {
        let mut state = seed;
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect();
        Tensor::<3>::from_data(
            TensorData::new(values, shape),
            (&Device::flex(), DType::F32),
        )
        .cast(dtype)
    }

    /// The largest difference between two tensors, and the largest value.
    fn difference(a: Tensor<2>, b: Tensor<2>) -> (f32, f32) {
        let largest = |t: Tensor<2>| t.into_data().iter::<f32>().fold(0.0, |m, v| v.abs().max(m));
        (largest(a.clone() - b), largest(a))
    }

    #[test]
    fn kernel_agrees_with_plain_operations() {
        let (retained, hidden, intermediate, tokens) = (5, 48, 37, 23);
        let routes: Vec<Vec<TokenWeight>> = (0..retained)
            .map(|row| {
                (0..tokens)
                    .filter(|token| (token * 7 + row) % 5 < row)
                    .map(|token| TokenWeight {
                        token,
                        weight: 0.1 * (row + token) as f32,
                    })
                    .collect()
            })
            .collect();
        for (activations, weights, limit, tolerance) in [
            (DType::F32, DType::F32, None, 1e-5),
            (DType::F32, DType::F32, Some(0.3), 1e-5),
            (DType::F32, DType::F16, None, 1e-5),
            (DType::F32, DType::BF16, None, 1e-5),
            (DType::BF16, DType::BF16, None, 2e-2),
        ] {
            let x = numbers(1, [1, tokens, hidden], activations).squeeze_dim(0);
            let gate_up = numbers(2, [retained, 2 * intermediate, hidden], weights);
            let down = numbers(3, [retained, hidden, intermediate], weights);
            let buffers = [OutputBuffer::default(), OutputBuffer::default()];
            let [of_plain, of_kernel] = &buffers;
            let reference = plain(x.clone(), &routes, &gate_up, &down, limit, Some(of_plain));
            let [gate_up, down] = [gate_up, down].map(Param::from_tensor);
            let compute =
                |outputs| retained_experts(x.clone(), &routes, &gate_up, &down, limit, outputs);
            let found = compute(Some(of_kernel)).expect("routes");
            assert_eq!(
                found.to_data(),
                compute(None).expect("routes").to_data(),
                "observing changes nothing"
            );
            let count = routes.iter().map(Vec::len).sum::<usize>();
            let [of_plain, of_kernel] = buffers.map(|buffer| {
                let data = TensorData::new(buffer.take(), [count, hidden]);
                Tensor::<2>::from_data(data, (&Device::flex(), DType::F32))
            });
            for (found, reference) in [(found, reference), (of_kernel, of_plain)] {
                let (difference, largest) = difference(found, reference);
                assert!(
                    difference <= tolerance * largest,
                    "{activations:?}, {weights:?}: {difference} of {largest}"
                );
            }
        }
    }

    #[test]
    fn linear_kernel_agrees_with_plain_product() {
        for weights in [DType::F32, DType::F16, DType::BF16] {
            let x: Tensor<2> = numbers(1, [1, 9, 33], DType::F32).squeeze_dim(0);
            let weight: Tensor<2> = numbers(2, [1, 21, 33], weights).squeeze_dim(0);
            let reference = plain_product(x.clone(), weight.clone(), DType::F32);
            let (difference, largest) = difference(crate::linear::product(x, weight), reference);
            assert!(
                difference <= 1e-5 * largest,
                "{weights:?}: {difference} of {largest}"
            );
        }
    }
}
