//! Causal attention of one sequence.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::extension;

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
    if keys.dtype() == dtype
        && values.dtype() == dtype
        && let Some(variant) = extension::variant(&queries.device(), dtype, &[])
    {
        let attended = extension::attention(queries, keys, values, scale, variant);
        return extension::cast(attended, dtype);
    }
    plain(queries, keys, values, scale)
}

/// The same by tensor operations.
fn plain(queries: Tensor<3>, keys: Tensor<3>, values: Tensor<3>, scale: f64) -> Tensor<2> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seed: u32, shape: [usize; 3], dtype: DType) -> Tensor<3> {
        let mut state = seed;
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 22) as f32 - 2.0
            })
            .collect();
        let device = Device::flex();
        Tensor::<3>::from_data(TensorData::new(values, shape), (&device, DType::F32)).cast(dtype)
    }

    #[test]
    fn kernel_agrees_with_plain_operations_on_views() {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 2e-2)] {
            let (heads, kv_heads, tokens, seen, head, size) = (6, 2, 5, 9, 20, 12);
            // As a model has them: tokens first, and a cache with room to spare.
            let queries = numbers(1, [tokens, heads, head], dtype).swap_dims(0, 1);
            let cache = |seed, size| {
                numbers(seed, [kv_heads, 3 * seen, size], dtype).slice_dim(1, 2..2 + seen)
            };
            let (keys, values) = (cache(2, head), cache(3, size));
            let found = attend(queries.clone(), keys.clone(), values.clone(), 0.3);
            let expected = plain(queries, keys, values, 0.3);
            let found: Vec<f32> = found.into_data().iter::<f32>().collect();
            let expected: Vec<f32> = expected.into_data().iter::<f32>().collect();
            assert_eq!(found.len(), tokens * heads * size);
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= tolerance, "{found} {expected}");
            }
        }
    }
}
