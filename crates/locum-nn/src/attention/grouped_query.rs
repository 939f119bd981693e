//! Attention with grouped-query heads and rotary positions, in the variants that families use.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{AttentionShape, SelfAttention, attend};
use crate::linear;
use crate::{Linear, RmsNorm, Step};

/// How queries and keys are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadNorm {
    /// Not at all.
    None,
    /// Over the whole projection, before it is split into heads, with this ε.
    Projection(f64),
    /// Over each head, with this ε.
    Head(f64),
}

/// What differs between families.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// The heads.
    pub shape: AttentionShape,
    /// Normalisation of queries and keys.
    pub norm: HeadNorm,
    /// Whether queries, keys and values have a bias.
    pub bias: bool,
    /// Bound on queries, keys and values (`clip_qkv`).
    pub clip: Option<f64>,
}

/// Causal self-attention (arXiv 2305.13245).
#[derive(Module, Debug)]
pub struct GroupedQueryAttention {
    /// `[heads·head, hidden]`
    pub q_proj: Linear,
    /// `[kv_heads·head, hidden]`
    pub k_proj: Linear,
    /// `[kv_heads·head, hidden]`
    pub v_proj: Linear,
    /// `[hidden, heads·head]`
    pub o_proj: Linear,
    /// `[heads·head]` or `[head]`
    pub q_norm: Option<RmsNorm>,
    /// `[kv_heads·head]` or `[head]`
    pub k_norm: Option<RmsNorm>,
    #[module(skip)]
    options: AttentionOptions,
}

impl GroupedQueryAttention {
    /// An attention layer, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, options: AttentionOptions, device: &Device) -> Self {
        let AttentionShape {
            heads,
            kv_heads,
            head,
        } = options.shape;
        let projection = |outputs| {
            let linear = Linear::new(hidden, outputs, device);
            if options.bias {
                linear.with_bias(device)
            } else {
                linear
            }
        };
        let norm = |heads: usize| match options.norm {
            HeadNorm::None => None,
            HeadNorm::Projection(epsilon) => Some(RmsNorm::new(heads * head, epsilon, device)),
            HeadNorm::Head(epsilon) => Some(RmsNorm::new(head, epsilon, device)),
        };
        Self {
            q_proj: projection(heads * head),
            k_proj: projection(kv_heads * head),
            v_proj: projection(kv_heads * head),
            o_proj: Linear::new(heads * head, hidden, device),
            q_norm: norm(heads),
            k_norm: norm(kv_heads),
            options,
        }
    }

    /// Normalises, bounds and splits a projection: `[tokens, heads·head]` to
    /// `[tokens, heads, head]`.
    fn heads(&self, x: Tensor<2>, heads: usize, norm: &Option<RmsNorm>) -> Tensor<3> {
        let over_head = matches!(self.options.norm, HeadNorm::Head(_));
        let x = match norm {
            Some(norm) if !over_head => norm.forward(x),
            _ => x,
        };
        let x = match self.options.clip {
            Some(bound) => x.clamp(-bound, bound),
            None => x,
        };
        let tokens = x.dims()[0];
        let x = x.reshape([tokens, heads, self.options.shape.head]);
        match norm {
            Some(norm) if over_head => norm.forward(x),
            _ => x,
        }
    }
}

impl SelfAttention for GroupedQueryAttention {
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2> {
        let AttentionShape {
            heads,
            kv_heads,
            head,
        } = self.options.shape;
        let projections = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [queries, keys, values] = linear::three(x, projections);
        let queries = self.heads(queries, heads, &self.q_norm);
        let keys = self.heads(keys, kv_heads, &self.k_norm);
        let values = self.heads(values, kv_heads, &None);
        let queries = step.rotary().forward(queries);
        let keys = step.rotary().forward(keys);
        let scale = (head as f64).powf(-0.5);
        let attended = step.by_sequence(layer, |start, length, cache| {
            let rows = |x: &Tensor<3>| {
                x.clone()
                    .slice_dim(0, start..start + length)
                    .swap_dims(0, 1)
            };
            let (keys, values) = cache.append(rows(&keys), rows(&values));
            attend(rows(&queries), keys, values, scale)
        });
        self.o_proj.forward(attended)
    }
}
