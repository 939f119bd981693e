//! The retained experts' part: the one function that a kernel replaces.

use burn::module::Param;
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use locum_substitution::TokenWeight;

use crate::linear::product;
use crate::mlp::swiglu;

/// `Σ w · down(silu(gate·x) ⊙ up·x)` in `f32`, by plain tensor operations: a product per expert that
/// some token goes to. `None` where no token goes to any. `limit` bounds `gate·x` and `up·x`.
///
/// # Shapes
///
/// `x` `[tokens, hidden]`, `gate_up` `[retained, 2·intermediate, hidden]`, `down`
/// `[retained, hidden, intermediate]`; `routes` has the tokens of each retained row. Gives
/// `[tokens, hidden]`.
pub(super) fn retained_experts(
    x: Tensor<2>,
    routes: &[Vec<TokenWeight>],
    gate_up: &Param<Tensor<3>>,
    down: &Param<Tensor<3>>,
    limit: Option<f64>,
) -> Option<Tensor<2>> {
    if routes.iter().all(Vec::is_empty) {
        return None;
    }
    let device = x.device();
    let (gate_up, down) = (gate_up.val(), down.val());
    let intermediate = down.dims()[2];
    let mut sum = Tensor::zeros(x.dims(), (&device, DType::F32));
    for (row, tokens) in routes.iter().enumerate().filter(|(_, t)| !t.is_empty()) {
        let chosen = indices(tokens, &device);
        let gate_up_x = product(x.clone().select(0, chosen.clone()), matrix(&gate_up, row));
        let gate = gate_up_x.clone().slice_dim(1, 0..intermediate);
        let up = gate_up_x.slice_dim(1, intermediate..2 * intermediate);
        let y = product(swiglu(gate, up, limit), matrix(&down, row)).cast(DType::F32);
        sum = sum.select_assign(
            0,
            chosen,
            y * router_weights(tokens, &device),
            IndexingUpdateOp::Add,
        );
    }
    Some(sum)
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
