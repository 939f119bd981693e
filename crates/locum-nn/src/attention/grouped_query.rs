//! Attention with grouped-query heads and rotary positions, in the variants that families use.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{AttentionShape, attend};
use crate::{LayerCache, Linear, RmsNorm, RotaryEmbedding};

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

    /// Attends, after the tokens in the cache.
    ///
    /// # Shapes
    ///
    /// `[batch, tokens, hidden]` to the same.
    #[must_use]
    pub fn forward(
        &self,
        x: Tensor<3>,
        rotary: &RotaryEmbedding,
        cache: Option<&mut LayerCache>,
    ) -> Tensor<3> {
        let shape = self.options.shape;
        let queries = self.heads(self.q_proj.forward(x.clone()), shape.heads, &self.q_norm);
        let keys = self.heads(self.k_proj.forward(x.clone()), shape.kv_heads, &self.k_norm);
        let values = self.heads(self.v_proj.forward(x), shape.kv_heads, &None);
        let queries = rotary.forward(queries);
        let keys = rotary.forward(keys);
        let (keys, values) = match cache {
            Some(cache) => cache.append(keys, values),
            None => (keys, values),
        };
        self.o_proj.forward(attend(queries, keys, values, shape))
    }

    /// Normalises, bounds and splits a projection.
    fn heads(&self, x: Tensor<3>, heads: usize, norm: &Option<RmsNorm>) -> Tensor<4> {
        let over_head = matches!(self.options.norm, HeadNorm::Head(_));
        let x = match norm {
            Some(norm) if !over_head => norm.forward(x),
            _ => x,
        };
        let x = match self.options.clip {
            Some(bound) => x.clamp(-bound, bound),
            None => x,
        };
        let x = self.options.shape.split(x, heads);
        match norm {
            Some(norm) if over_head => norm.forward(x),
            _ => x,
        }
    }
}
