//! Causal attention with grouped-query heads.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Tensor, TensorData};

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head: usize,
}

impl AttentionShape {
    /// Splits a projection into heads.
    ///
    /// # Shapes
    ///
    /// `[batch, tokens, heads·head]` to `[batch, heads, tokens, head]`.
    #[must_use]
    pub fn split(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        let [batch, tokens, _] = x.dims();
        x.reshape([batch, tokens, heads, self.head]).swap_dims(1, 2)
    }
}

/// `softmax(q·kᵀ/√head + causal)·v` in `f32`, rounded once to the type of the queries
/// (arXiv 1706.03762, equation 1; grouped heads: arXiv 2305.13245).
///
/// The last query is the last of the keys: query `i` of `t` sees the keys up to `s − t + i`.
///
/// # Shapes
///
/// Queries `[batch, heads, t, head]`, keys and values `[batch, kv_heads, s, head]`; gives
/// `[batch, t, heads·head]`.
#[must_use]
pub fn attend(
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
    shape: AttentionShape,
) -> Tensor<3> {
    let dtype = queries.dtype();
    let [batch, heads, tokens, head] = queries.dims();
    let [_, kv_heads, seen, _] = keys.dims();
    let group = shape.heads / shape.kv_heads;
    // The queries of a group lie side by side, so that keys are never repeated in memory.
    let queries = (queries.cast(DType::F32) * (shape.head as f64).powf(-0.5)).reshape([
        batch,
        kv_heads,
        group * tokens,
        head,
    ]);
    let scores = queries.matmul(keys.cast(DType::F32).swap_dims(2, 3));
    let scores = if tokens == 1 {
        scores
    } else {
        let mask = causal(tokens, seen, &scores.device());
        let scores = scores.reshape([batch, kv_heads, group, tokens, seen]) + mask.unsqueeze();
        scores.reshape([batch, kv_heads, group * tokens, seen])
    };
    softmax(scores, 3)
        .matmul(values.cast(DType::F32))
        .reshape([batch, heads, tokens, head])
        .swap_dims(1, 2)
        .reshape([batch, tokens, heads * head])
        .cast(dtype)
}

/// 0 where a query sees a key, −∞ where not: `[tokens, seen]`.
fn causal(tokens: usize, seen: usize, device: &Device) -> Tensor<2> {
    let before = seen - tokens;
    let mask: Vec<f32> = (0..tokens)
        .flat_map(|query| {
            (0..seen).map(move |key| {
                if key <= before + query {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
        })
        .collect();
    Tensor::from_data(TensorData::new(mask, [tokens, seen]), (device, DType::F32))
}
