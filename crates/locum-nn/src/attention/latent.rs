//! Multi-head latent attention: keys and values of all heads from one small latent per token.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor};

use super::SelfAttention;
use super::attend::weigh;
use crate::linear::product;
use crate::{Linear, RmsNorm, Step};

/// The sizes of a latent attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentShape {
    /// Heads, of queries, keys and values alike.
    pub heads: usize,
    /// Elements of a query or key that know no position (`qk_nope_head_dim`).
    pub content: usize,
    /// Elements of a query or key that are rotated; the key's are the same for all heads
    /// (`qk_rope_head_dim`).
    pub rotary: usize,
    /// Elements of a value (`v_head_dim`).
    pub value: usize,
    /// The size of the latent that keys and values come from (`kv_lora_rank`).
    pub latent: usize,
    /// The size of the latent that queries come from, where there is one (`q_lora_rank`).
    pub query_latent: Option<usize>,
}

impl LatentShape {
    /// Elements that the cache holds per token and layer: the latent and the rotary key.
    ///
    /// So a token takes `(kv_lora_rank + qk_rope_head_dim) · layers` elements of the activations'
    /// type: 70 272 bytes in `bf16` for DeepSeek-V3 (576 · 61 · 2), 31 104 for DeepSeek-V2-Lite
    /// (576 · 27 · 2), twice that in `f32`.
    #[must_use]
    pub fn cached_elements(&self) -> usize {
        self.latent + self.rotary
    }

    /// Whether fewer products are needed with queries brought to the latents than with latents
    /// expanded to keys and values, for `tokens` queries and `seen` latents.
    ///
    /// Per head, what is expanded costs `latent · (content + value)` a latent, and then
    /// `content + value` a score; what is absorbed costs as much a query, and then `2 · latent` a
    /// score. Single tokens are absorbed, long prompts expanded.
    fn absorbs(&self, tokens: usize, seen: usize) -> bool {
        let head = self.content + self.value;
        let scores = tokens * seen;
        self.latent * head * tokens + 2 * self.latent * scores
            <= self.latent * head * seen + head * scores
    }
}

/// What differs between checkpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentOptions {
    /// The sizes.
    pub shape: LatentShape,
    /// What scores are multiplied by.
    pub scale: f64,
    /// ε of the latents' normalisations.
    pub epsilon: f64,
}

/// Causal self-attention from latents (DeepSeek-V2, arXiv 2405.04434, section 2.1).
///
/// The cache holds the normalised latent and the rotated key of each token, and nothing else:
/// [`LatentShape::cached_elements`]. Keys and values are never stored.
#[derive(Module, Debug)]
pub struct LatentAttention {
    /// `[heads·(content + rotary), hidden]`; where queries have no latent.
    pub q_proj: Option<Linear>,
    /// `[query latent, hidden]`
    pub q_a_proj: Option<Linear>,
    /// `[query latent]`
    pub q_a_layernorm: Option<RmsNorm>,
    /// `[heads·(content + rotary), query latent]`
    pub q_b_proj: Option<Linear>,
    /// `[latent + rotary, hidden]`
    pub kv_a_proj_with_mqa: Linear,
    /// `[latent]`
    pub kv_a_layernorm: RmsNorm,
    /// `[heads·(content + value), latent]`
    pub kv_b_proj: Linear,
    /// `[hidden, heads·value]`
    pub o_proj: Linear,
    #[module(skip)]
    options: LatentOptions,
}

impl LatentAttention {
    /// An attention layer, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, options: LatentOptions, device: &Device) -> Self {
        let LatentShape {
            heads,
            content,
            rotary,
            value,
            latent,
            query_latent,
        } = options.shape;
        let queries = heads.saturating_mul(content + rotary);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, device);
        let norm = |size| RmsNorm::new(size, options.epsilon, device);
        Self {
            q_proj: query_latent.is_none().then(|| linear(hidden, queries)),
            q_a_proj: query_latent.map(|size| linear(hidden, size)),
            q_a_layernorm: query_latent.map(norm),
            q_b_proj: query_latent.map(|size| linear(size, queries)),
            kv_a_proj_with_mqa: linear(hidden, latent + rotary),
            kv_a_layernorm: norm(latent),
            kv_b_proj: linear(latent, heads.saturating_mul(content + value)),
            o_proj: linear(heads.saturating_mul(value), hidden),
            options,
        }
    }

    /// `[tokens, hidden]` to `[tokens, heads, content + rotary]`.
    fn queries(&self, x: Tensor<2>) -> Tensor<3> {
        let LatentShape {
            heads,
            content,
            rotary,
            ..
        } = self.options.shape;
        let tokens = x.dims()[0];
        let x = match (&self.q_a_proj, &self.q_a_layernorm) {
            (Some(projection), Some(norm)) => norm.forward(projection.forward(x)),
            _ => x,
        };
        let x = match self.q_b_proj.as_ref().or(self.q_proj.as_ref()) {
            Some(projection) => projection.forward(x),
            None => x,
        };
        x.reshape([tokens, heads, content + rotary])
    }

    /// What makes keys and values of latents, in `f32`.
    fn expansion(&self) -> Expansion {
        let LatentShape {
            heads,
            content,
            value,
            latent,
            ..
        } = self.options.shape;
        let weight = self.kv_b_proj.weight.val().cast(DType::F32);
        let by_head = weight.reshape([heads, content + value, latent]);
        Expansion {
            keys: by_head.clone().slice_dim(1, 0..content),
            values: by_head.slice_dim(1, content..content + value),
        }
    }

    /// `softmax((q_content·k_content + q_rotary·k_rotary)·scale + causal)·v` in `f32`, where a head
    /// has `k_content = W_k·c` and `v = W_v·c` of the latents `c`.
    ///
    /// Absorbed, `W_k` goes to the queries and `W_v` to the weighted sum of latents, so that latents
    /// are used as they are (section 2.1.2 of the paper); expanded, it is as it is written above.
    ///
    /// # Shapes
    ///
    /// Queries `[heads, t, size]`, latents `[1, s, latent]`, keys `[1, s, rotary]`; gives
    /// `[t, heads·value]`.
    fn attend(
        &self,
        queries: Queries,
        latents: Tensor<3>,
        keys: Tensor<3>,
        expansion: &Expansion,
        absorb: bool,
    ) -> Tensor<2> {
        let LatentShape {
            heads,
            rotary,
            value,
            latent,
            ..
        } = self.options.shape;
        let [_, tokens, _] = queries.content.dims();
        let seen = latents.dims()[1];
        let scaled = |queries: Tensor<3>| queries.cast(DType::F32) * self.options.scale;
        let latents = latents.cast(DType::F32);
        let content = scaled(queries.content);
        let by_position = scaled(queries.rotary)
            .reshape([1, heads * tokens, rotary])
            .matmul(keys.cast(DType::F32).swap_dims(1, 2));
        if absorb {
            let by_content = content
                .matmul(expansion.keys.clone())
                .reshape([1, heads * tokens, latent])
                .matmul(latents.clone().swap_dims(1, 2));
            weigh(by_content + by_position, latents, tokens)
                .reshape([tokens, heads, latent])
                .swap_dims(0, 1)
                .matmul(expansion.values.clone().swap_dims(1, 2))
                .swap_dims(0, 1)
                .reshape([tokens, heads * value])
        } else {
            let latents = latents.reshape([seen, latent]);
            let expanded = |weight: &Tensor<3>| {
                let [heads, size, latent] = weight.dims();
                let weight = weight.clone().reshape([heads * size, latent]);
                product(latents.clone(), weight)
                    .reshape([seen, heads, size])
                    .swap_dims(0, 1)
            };
            let by_content = content.matmul(expanded(&expansion.keys).swap_dims(1, 2));
            let scores = by_content + by_position.reshape([heads, tokens, seen]);
            weigh(scores, expanded(&expansion.values), tokens)
        }
    }
}

impl SelfAttention for LatentAttention {
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2> {
        let dtype = x.dtype();
        let LatentShape {
            content,
            rotary,
            latent,
            ..
        } = self.options.shape;
        let queries = self.queries(x.clone());
        let queries = Queries {
            content: queries.clone().slice_dim(2, 0..content),
            rotary: (step.rotary()).forward(queries.slice_dim(2, content..content + rotary)),
        };
        let compressed = self.kv_a_proj_with_mqa.forward(x);
        let latents = compressed.clone().slice_dim(1, 0..latent);
        let latents = self.kv_a_layernorm.forward(latents).unsqueeze_dim::<3>(1);
        let key = compressed.slice_dim(1, latent..latent + rotary);
        let key = step.rotary().forward(key.unsqueeze_dim(1));

        let expansion = self.expansion();
        let attended = step.by_sequence(layer, |start, length, cache| {
            let rows = |x: &Tensor<3>| {
                x.clone()
                    .slice_dim(0, start..start + length)
                    .swap_dims(0, 1)
            };
            let (latents, keys) = cache.append(rows(&latents), rows(&key));
            let queries = Queries {
                content: rows(&queries.content),
                rotary: rows(&queries.rotary),
            };
            let absorb = self.options.shape.absorbs(length, latents.dims()[1]);
            self.attend(queries, latents, keys, &expansion, absorb)
        });
        self.o_proj.forward(attended.cast(dtype))
    }
}

/// Queries, `[tokens, heads, size]` or `[heads, tokens, size]`.
struct Queries {
    content: Tensor<3>,
    rotary: Tensor<3>,
}

/// `kv_b_proj` by heads.
struct Expansion {
    /// `[heads, content, latent]`
    keys: Tensor<3>,
    /// `[heads, value, latent]`
    values: Tensor<3>,
}

#[cfg(test)]
mod tests {
    use burn::module::{ModuleMapper, Param};
    use burn::tensor::TensorData;

    use super::*;
    use crate::{KvCache, RotaryConfig};

    const HIDDEN: usize = 12;

    const SHAPE: LatentShape = LatentShape {
        heads: 3,
        content: 6,
        rotary: 4,
        value: 5,
        latent: 7,
        query_latent: Some(9),
    };

    /// Fills parameters with numbers between −½ and ½ that look random.
    struct Fill(u32);

    impl Fill {
        fn numbers<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
            let numbers: Vec<f32> = (0..shape.iter().product())
                .map(|_| {
                    self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (self.0 >> 8) as f32 / (1 << 24) as f32 - 0.5
                })
                .collect();
            let data = TensorData::new(numbers, shape);
            Tensor::from_data(data, (&Device::flex(), DType::F32))
        }
    }

    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let shape = param.lazy_shape().dims();
            Param::initialized(param.id, self.numbers(shape))
        }
    }

    fn layer(shape: LatentShape) -> LatentAttention {
        let options = LatentOptions {
            shape,
            scale: 0.3,
            epsilon: 1e-6,
        };
        LatentAttention::new(HIDDEN, options, &Device::flex()).map(&mut Fill(1))
    }

    fn continued(layer: &LatentAttention, x: Tensor<2>, cache: &mut KvCache) -> Tensor<2> {
        let rotary = RotaryConfig::new(SHAPE.rotary, 1e4);
        let lengths = [x.dims()[0]];
        let caches = std::slice::from_mut(cache);
        let mut step = Step::new(&lengths, caches, &rotary, &Device::flex());
        let y = layer.forward(x, 0, &mut step);
        step.finish();
        y
    }

    #[track_caller]
    fn assert_close(found: Tensor<2>, expected: Tensor<2>) {
        assert_eq!(found.dims(), expected.dims());
        let off: f32 = (found - expected).abs().max().into_scalar();
        assert!(off < 1e-5, "off by {off}");
    }

    #[test]
    fn absorbed_and_expanded_latents_give_the_same() {
        let layer = layer(SHAPE);
        let mut fill = Fill(2);
        for (tokens, seen) in [(1, 1), (1, 8), (5, 5), (3, 8)] {
            let queries = || Queries {
                content: Fill(3).numbers([SHAPE.heads, tokens, SHAPE.content]),
                rotary: Fill(4).numbers([SHAPE.heads, tokens, SHAPE.rotary]),
            };
            let latents = fill.numbers([1, seen, SHAPE.latent]);
            let keys = fill.numbers([1, seen, SHAPE.rotary]);
            let [absorbed, expanded] = [true, false].map(|absorb| {
                let (latents, keys) = (latents.clone(), keys.clone());
                layer.attend(queries(), latents, keys, &layer.expansion(), absorb)
            });
            assert_close(absorbed, expanded);
        }
    }

    #[test]
    fn tokens_are_absorbed_one_by_one_and_prompts_are_expanded() {
        let deepseek_v3 = LatentShape {
            heads: 128,
            content: 128,
            rotary: 64,
            value: 128,
            latent: 512,
            query_latent: Some(1536),
        };
        assert!(deepseek_v3.absorbs(1, 2));
        assert!(deepseek_v3.absorbs(1, 4096));
        assert!(deepseek_v3.absorbs(16, 4096));
        assert!(!deepseek_v3.absorbs(4096, 4096));
        assert_eq!(deepseek_v3.cached_elements(), 576);
    }

    #[test]
    fn token_by_token_is_all_at_once() {
        for query_latent in [SHAPE.query_latent, None] {
            let layer = layer(LatentShape {
                query_latent,
                ..SHAPE
            });
            let x = Fill(5).numbers([6, HIDDEN]);
            let whole = continued(&layer, x.clone(), &mut KvCache::new(1));
            let mut cache = KvCache::new(1);
            let tokens = (0..6).map(|token| {
                let x = x.clone().slice_dim(0, token..token + 1);
                continued(&layer, x, &mut cache)
            });
            assert_close(Tensor::cat(tokens.collect(), 0), whole);
        }
    }

    #[test]
    fn cache_holds_the_latent_and_the_rotary_key() {
        let mut cache = KvCache::new(1);
        let _ = continued(&layer(SHAPE), Fill(5).numbers([6, HIDDEN]), &mut cache);
        let (latents, keys) = cache.layer(0).append(
            Fill(6).numbers([1, 1, SHAPE.latent]),
            Fill(7).numbers([1, 1, SHAPE.rotary]),
        );
        assert_eq!(latents.dims(), [1, 7, 7]);
        assert_eq!(keys.dims(), [1, 7, 4]);
    }
}
