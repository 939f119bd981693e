//! The substituted experts' part: weighted sums of constants.

use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use locum_kernels::ConstantRoute as KernelRoute;
use locum_substitution::ConstantRoute;

use crate::extension;

/// Adds `Σ w · c` over the routes to constants to the retained experts' sum: on the CPU summed in
/// `f64`, that sum included, and rounded once; in `f32` elsewhere. `None` where there is nothing to
/// add up.
///
/// # Shapes
///
/// `retained` `[tokens, hidden]` in `f32`, `values` `[substituted, hidden]`; gives the shape of
/// `retained`, `f32`.
pub(super) fn add(
    retained: Option<Tensor<2>>,
    routes: &[ConstantRoute],
    values: &Tensor<2>,
    tokens: usize,
) -> Option<Tensor<2>> {
    if routes.is_empty() {
        return retained;
    }
    let device = values.device();
    let Some(variant) = extension::variant(&device, DType::F32, &[values.dtype()]) else {
        return Some(add_plainly(retained, routes, values, tokens));
    };
    let zeros = || Tensor::zeros([tokens, values.dims()[1]], (&device, DType::F32));
    let routes = routes
        .iter()
        .map(|route| KernelRoute {
            token: route.token,
            row: route.row,
            weight: route.weight,
        })
        .collect();
    Some(extension::add_constants(
        retained.unwrap_or_else(zeros),
        values.clone(),
        routes,
        variant,
    ))
}

/// The same by tensor operations.
pub(super) fn add_plainly(
    retained: Option<Tensor<2>>,
    routes: &[ConstantRoute],
    values: &Tensor<2>,
    tokens: usize,
) -> Tensor<2> {
    let constants = sum_on_device(routes, values, tokens, &values.device());
    match retained {
        Some(retained) => retained + constants,
        None => constants,
    }
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
