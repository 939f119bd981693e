//! Causal attention of one sequence.

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
    /// Elements that a cache of keys and values holds per token.
    #[must_use]
    pub fn cached_elements(&self) -> usize {
        self.kv_heads.saturating_mul(self.head).saturating_mul(2)
    }
}

/// `softmax(q·kᵀ·scale + causal)·v` in `f32`, rounded once to the type of the queries
/// (arXiv 1706.03762, equation 1; grouped heads: arXiv 2305.13245).
///
/// The last query is the last of the keys: query `i` of `t` sees the keys up to `s − t + i`.
///
/// # Shapes
///
/// Queries `[heads, t, head]`, keys `[kv_heads, s, head]`, values `[kv_heads, s, size]`, where
/// `kv_heads` divides `heads`; gives `[t, heads·size]`.
#[must_use]
pub fn attend(queries: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, scale: f64) -> Tensor<2> {
    let dtype = queries.dtype();
    let [heads, tokens, head] = queries.dims();
    let kv_heads = keys.dims()[0];
    // The queries of a group lie side by side, so that keys are never repeated in memory.
    let queries =
        (queries.cast(DType::F32) * scale).reshape([kv_heads, heads / kv_heads * tokens, head]);
    let scores = queries.matmul(keys.cast(DType::F32).swap_dims(1, 2));
    weigh(scores, values, tokens).cast(dtype)
}

/// `softmax(scores + causal)·values`, in `f32`.
///
/// # Shapes
///
/// Scores `[kv_heads, group·tokens, s]` of groups of query heads that share a key and value head,
/// values `[kv_heads, s, size]`; gives `[tokens, heads·size]`.
pub(super) fn weigh(scores: Tensor<3>, values: Tensor<3>, tokens: usize) -> Tensor<2> {
    let [kv_heads, rows, seen] = scores.dims();
    let group = rows / tokens;
    let size = values.dims()[2];
    let scores = if tokens == 1 {
        scores
    } else {
        let mask = causal(tokens, seen, &scores.device());
        let scores = scores.reshape([kv_heads, group, tokens, seen]) + mask.unsqueeze();
        scores.reshape([kv_heads, rows, seen])
    };
    softmax(scores, 2)
        .matmul(values.cast(DType::F32))
        .reshape([kv_heads * group, tokens, size])
        .swap_dims(0, 1)
        .reshape([tokens, kv_heads * group * size])
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
