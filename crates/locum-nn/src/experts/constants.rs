//! The substituted experts' part: weighted sums of constants.

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use locum_substitution::ConstantRoute;

/// `Σ w · c` over the routes to constants: summed in `f64` on the CPU and rounded once, in `f32`
/// elsewhere. `None` where there is no such route.
///
/// # Shapes
///
/// `values` `[substituted, hidden]`; gives `[tokens, hidden]`, `f32`.
pub(super) fn sum(
    routes: &[ConstantRoute],
    values: &Tensor<2>,
    tokens: usize,
    device: &Device,
) -> Option<Tensor<2>> {
    if routes.is_empty() {
        return None;
    }
    let hidden = values.dims()[1];
    if *device != Device::flex() {
        return Some(sum_on_device(routes, values, tokens, device));
    }
    let values: Vec<f32> = values.to_data().iter::<f32>().collect();
    let sums = sum_f64(routes, &values, tokens, hidden);
    Some(Tensor::from_data(
        TensorData::new(sums, [tokens, hidden]),
        (device, DType::F32),
    ))
}

/// The sum on slices, accumulated in `f64` in route order and rounded once.
fn sum_f64(routes: &[ConstantRoute], values: &[f32], tokens: usize, hidden: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; tokens * hidden];
    for route in routes {
        let sum = &mut sums[route.token * hidden..][..hidden];
        let constant = &values[route.row * hidden..][..hidden];
        for (sum, &value) in sum.iter_mut().zip(constant) {
            *sum += f64::from(route.weight) * f64::from(value);
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

/// The sum by tensor operations. Only the constants of each route's own token are touched, so that
/// a NaN among constants or weights stays with the tokens that were routed to it.
fn sum_on_device(
    routes: &[ConstantRoute],
    values: &Tensor<2>,
    tokens: usize,
    device: &Device,
) -> Tensor<2> {
    let count = routes.len();
    let index = |of: fn(&ConstantRoute) -> usize| -> Tensor<1, Int> {
        let ids: Vec<i32> = routes.iter().map(|route| of(route) as i32).collect();
        Tensor::from_data(TensorData::new(ids, [count]), device)
    };
    let weights: Vec<f32> = routes.iter().map(|route| route.weight).collect();
    let weights =
        Tensor::<2>::from_data(TensorData::new(weights, [count, 1]), (device, DType::F32));
    let chosen = values
        .clone()
        .select(0, index(|route| route.row))
        .cast(DType::F32);
    Tensor::zeros([tokens, values.dims()[1]], (device, DType::F32)).select_assign(
        0,
        index(|route| route.token),
        chosen * weights,
        IndexingUpdateOp::Add,
    )
}
