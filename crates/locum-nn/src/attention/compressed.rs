//! Attention within a window, and beyond it to entries of whole blocks of tokens.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::compressor::{Compressor, CompressorOptions};
use super::indexer::{IndexOptions, Indexer};
use super::{SelfAttention, of};
use crate::norm::normalized;
use crate::parameter::unloaded;
use crate::{LayerCache, Linear, RmsNorm, RotaryConfig, Step};

/// What differs between layers and checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub struct CompressedOptions {
    /// Query heads; keys and values have one.
    pub heads: usize,
    /// Elements of a head.
    pub head: usize,
    /// The size of the latent that queries come from (`q_lora_rank`).
    pub query_latent: usize,
    /// Tokens that a query sees one by one, its own included (`sliding_window`).
    pub window: usize,
    /// Groups of heads whose results are projected on their own (`o_groups`).
    pub groups: usize,
    /// The size of a group's projection (`o_lora_rank`).
    pub group_size: usize,
    /// Positions.
    pub rotary: RotaryConfig,
    /// ε of all normalisations.
    pub epsilon: f64,
    /// What is seen beyond the window: nothing, or compressed blocks.
    pub compression: Option<Compression>,
}

/// What attention sees of tokens beyond its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Tokens of a block, which have one entry.
    pub block: usize,
    /// How some entries are chosen. Where they are, blocks overlap (compressed sparse attention);
    /// where not, a query sees every whole block before it (heavily compressed attention).
    pub index: Option<IndexOptions>,
}

impl CompressedOptions {
    /// Elements that the cache holds of each block, and the tokens of a block: of attention that sees
    /// its window only, none of any.
    #[must_use]
    pub fn cached_per_block(&self) -> (usize, usize) {
        self.compression.map_or((0, 1), |compression| {
            let index = compression.index.map_or(0, |index| index.head);
            (self.head + index, compression.block)
        })
    }

    /// Elements that the cache holds of a sequence beside those of its blocks, at most: the window,
    /// and tokens of a block that is not whole.
    #[must_use]
    pub fn cached_per_sequence(&self) -> usize {
        let pending = self.compression.map_or(0, |compression| {
            let index = compression.index.map_or(0, |index| {
                self.compressor(&compression, index.head).pending_elements()
            });
            index + self.compressor(&compression, self.head).pending_elements()
        });
        (self.window - 1) * self.head + pending
    }

    fn compressor(&self, compression: &Compression, size: usize) -> CompressorOptions {
        CompressorOptions {
            block: compression.block,
            size,
            overlapping: compression.index.is_some(),
            rotary: self.rotary.clone(),
            epsilon: self.epsilon,
        }
    }
}

/// DeepSeek-V4's attention, as in transformers' `DeepseekV4Attention`: one head of keys, which are
/// the values too; queries from a latent, normalised; the last elements of all rotate, and are turned
/// back in the result; a sink per head, which takes weight and gives nothing; the result is projected
/// by groups of heads.
///
/// The cache holds the keys of the window, an entry per whole block, and the tokens of the block that
/// is not whole: [`CompressedOptions::cached_per_block`], [`CompressedOptions::cached_per_sequence`].
#[derive(Module, Debug)]
pub struct CompressedAttention {
    /// `[query latent, hidden]`
    pub wq_a: Linear,
    /// `[query latent]`
    pub q_norm: RmsNorm,
    /// `[heads·head, query latent]`
    pub wq_b: Linear,
    /// `[head, hidden]`
    pub wkv: Linear,
    /// `[head]`
    pub kv_norm: RmsNorm,
    /// `[heads]`
    pub attn_sink: Param<Tensor<1>>,
    /// `[groups·group size, heads·head / groups]`
    pub wo_a: Linear,
    /// `[hidden, groups·group size]`
    pub wo_b: Linear,
    /// Makes the entries of blocks.
    pub compressor: Option<Compressor>,
    /// Chooses among them.
    pub indexer: Option<Indexer>,
    #[module(skip)]
    options: CompressedOptions,
}

impl CompressedAttention {
    /// An attention layer, to be loaded.
    #[must_use]
    pub fn new(hidden: usize, options: CompressedOptions, device: &Device) -> Self {
        let CompressedOptions {
            heads,
            head,
            query_latent,
            groups,
            group_size,
            epsilon,
            ..
        } = options;
        let linear = |inputs, outputs| Linear::new(inputs, outputs, device);
        let norm = |size| RmsNorm::new(size, epsilon, device);
        let compressor = |compression: &Compression, size| {
            Compressor::new(hidden, options.compressor(compression, size), device)
        };
        let all = heads.saturating_mul(head);
        let projected = groups.saturating_mul(group_size);
        Self {
            wq_a: linear(hidden, query_latent),
            q_norm: norm(query_latent),
            wq_b: linear(query_latent, all),
            wkv: linear(hidden, head),
            kv_norm: norm(head),
            attn_sink: unloaded([heads], device),
            wo_a: linear(all / groups.max(1), projected),
            wo_b: linear(projected, hidden),
            compressor: options.compression.as_ref().map(|c| compressor(c, head)),
            indexer: options.compression.as_ref().and_then(|compression| {
                let options = compression.index?;
                let entries = compressor(compression, options.head);
                Some(Indexer::new(hidden, query_latent, options, entries, device))
            }),
            options,
        }
    }

    /// `softmax` of queries and keys, with the sinks among the scores, times the keys; in `f32`.
    ///
    /// # Shapes
    ///
    /// Queries `[tokens, heads, head]`, keys `[seen, head]`, mask `[tokens, seen]`; gives
    /// `[tokens, heads·head]`.
    fn attend(&self, queries: Tensor<3>, keys: Tensor<2>, mask: Option<Tensor<2>>) -> Tensor<2> {
        let [tokens, heads, head] = queries.dims();
        let seen = keys.dims()[0];
        let keys = keys.cast(DType::F32);
        let queries = queries.cast(DType::F32) * (head as f64).powf(-0.5);
        let mut scores = queries
            .swap_dims(0, 1)
            .reshape([heads * tokens, head])
            .matmul(keys.clone().transpose())
            .reshape([heads, tokens, seen]);
        if let Some(mask) = mask {
            scores = scores + mask.unsqueeze();
        }
        let sinks = self.attn_sink.val().cast(DType::F32).reshape([heads, 1, 1]);
        let sinks = sinks.expand([heads, tokens, 1]);
        softmax(Tensor::cat(vec![scores, sinks], 2), 2)
            .slice_dim(2, 0..seen)
            .reshape([heads * tokens, seen])
            .matmul(keys)
            .reshape([heads, tokens, head])
            .swap_dims(0, 1)
            .reshape([tokens, heads * head])
    }

    /// Projects the results of each group of heads, then all of them.
    fn output(&self, attended: Tensor<3>) -> Tensor<2> {
        let [tokens, heads, head] = attended.dims();
        let CompressedOptions {
            groups, group_size, ..
        } = self.options;
        let inputs = heads * head / groups;
        let dtype = attended.dtype();
        let mut weight = self.wo_a.weight.val();
        let mut attended = attended;
        if weight.dtype() != dtype {
            (weight, attended) = (weight.cast(DType::F32), attended.cast(DType::F32));
        }
        let by_group = attended
            .reshape([tokens, groups, inputs])
            .swap_dims(0, 1)
            .matmul(weight.reshape([groups, group_size, inputs]).swap_dims(1, 2))
            .swap_dims(0, 1)
            .reshape([tokens, groups * group_size]);
        self.wo_b.forward(by_group.cast(dtype))
    }
}

impl SelfAttention for CompressedAttention {
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2> {
        let CompressedOptions {
            heads,
            head,
            window,
            epsilon,
            compression,
            ref rotary,
            ..
        } = self.options;
        let (dtype, tokens) = (x.dtype(), x.dims()[0]);
        let rotary = step.rotary_of(rotary);
        let latents = self.q_norm.forward(self.wq_a.forward(x.clone()));
        let queries = self.wq_b.forward(latents.clone());
        let queries = normalized(queries.reshape([tokens, heads, head]), epsilon);
        let queries = rotary.rotate_last(queries);
        let keys = self.kv_norm.forward(self.wkv.forward(x.clone()));
        let keys: Tensor<2> = rotary.rotate_last(keys.unsqueeze_dim(1)).squeeze_dim(1);
        let compressed = self.compressor.as_ref().map(|c| (c, c.project(x.clone())));
        let indexed = self.indexer.as_ref().map(|indexer| {
            let queries = indexer.queries(latents, x.clone(), &rotary);
            (indexer, queries, indexer.compressor.project(x))
        });
        let attended = step.by_sequence(layer, |start, length, cache| {
            let rows = start..start + length;
            let LayerCache { blocks, index, .. } = &mut *cache;
            let block = compression.map_or(1, |compression| compression.block);
            let first = blocks.tokens(block);
            let entries = compressed.as_ref().and_then(|(compressor, tokens)| {
                compressor.append(tokens.clone().map(|x| of(&x, &rows)), blocks)
            });
            let indexed = indexed.as_ref().and_then(|(indexer, queries, tokens)| {
                let tokens = tokens.clone().map(|x| of(&x, &rows));
                Some((indexer, queries, indexer.compressor.append(tokens, index)?))
            });
            let keys = cache.slide(of(&keys, &rows), window);
            let before = keys.dims()[0] - length;
            // A window's worth of queries at a time: no more keys are compared than twice as many.
            let parts = (0..length).step_by(window).map(|from| {
                let to = (from + window).min(length);
                let rows = start + from..start + to;
                let nearest = (before + from + 1).saturating_sub(window)..before + to;
                let near = of(&keys, &nearest);
                let beyond = entries.as_ref().map(|entries| {
                    let whole = (first + from..first + to).map(|position| (position + 1) / block);
                    let whole: Vec<usize> = whole.collect();
                    let chosen = match &indexed {
                        Some((indexer, queries, keys)) => {
                            indexer.choose(&queries.of(&rows), keys, &whole)
                        }
                        None => whole
                            .into_iter()
                            .map(|whole| (0..whole).collect())
                            .collect(),
                    };
                    Beyond {
                        entries: entries.clone(),
                        chosen,
                    }
                });
                let first_query = before + from - nearest.start;
                let (keys, mask) = sight(near, first_query, to - from, window, beyond);
                self.attend(of(&queries, &rows), keys, mask)
            });
            let mut parts: Vec<Tensor<2>> = parts.collect();
            match parts.len() {
                1 => parts.swap_remove(0),
                _ => Tensor::cat(parts, 0),
            }
        });
        let attended = rotary.unrotate_last(attended.reshape([tokens, heads, head]));
        self.output(attended.cast(dtype))
    }
}

/// Entries of blocks, and those that each query sees.
struct Beyond {
    /// `[blocks, head]`
    entries: Tensor<2>,
    chosen: Vec<Vec<usize>>,
}

/// The keys that queries see, of those near and of entries beyond, and which query sees which; no
/// mask where all are seen by all.
///
/// # Shapes
///
/// `near` `[near, head]`, where the first of `queries` queries is at `first`; gives `[seen, head]`
/// and `[queries, seen]`.
fn sight(
    near: Tensor<2>,
    first: usize,
    queries: usize,
    window: usize,
    beyond: Option<Beyond>,
) -> (Tensor<2>, Option<Tensor<2>>) {
    let device = near.device();
    let near_count = near.dims()[0];
    let Some(Beyond { entries, chosen }) = beyond else {
        let mask = (queries > 1).then(|| {
            mask([queries, near_count], &device, |query, key| {
                in_window(first + query, key, window)
            })
        });
        return (near, mask);
    };
    if let ([chosen], 1) = (&chosen[..], queries) {
        let ids: Vec<i64> = chosen.iter().map(|&entry| entry as i64).collect();
        let count = ids.len();
        if count == 0 {
            return (near, None);
        }
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device);
        return (Tensor::cat(vec![near, entries.select(0, ids)], 0), None);
    }
    let seen = near_count + entries.dims()[0];
    let mask = mask([queries, seen], &device, |query, key| {
        match key.checked_sub(near_count) {
            None => in_window(first + query, key, window),
            Some(entry) => chosen[query].binary_search(&entry).is_ok(),
        }
    });
    (Tensor::cat(vec![near, entries], 0), Some(mask))
}

fn in_window(query: usize, key: usize, window: usize) -> bool {
    key <= query && query - key < window
}

/// 0 where a query sees a key, −∞ where not.
fn mask(
    [queries, keys]: [usize; 2],
    device: &Device,
    sees: impl Fn(usize, usize) -> bool,
) -> Tensor<2> {
    let mask: Vec<f32> = (0..queries)
        .flat_map(|query| (0..keys).map(move |key| (query, key)))
        .map(|(query, key)| {
            if sees(query, key) {
                0.0
            } else {
                f32::NEG_INFINITY
            }
        })
        .collect();
    Tensor::from_data(TensorData::new(mask, [queries, keys]), (device, DType::F32))
}
