//! Which blocks of tokens a query sees.

use std::ops::Range;

use burn::module::Module;
use burn::tensor::activation::relu;
use burn::tensor::{DType, Device, Tensor};

use super::compressor::Compressor;
use super::of;
use crate::router::best_first;
use crate::{Linear, RotaryEmbedding};

/// How entries are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexOptions {
    /// Heads of the choice (`index_n_heads`).
    pub heads: usize,
    /// Elements of such a head (`index_head_dim`).
    pub head: usize,
    /// Entries that a query sees (`index_topk`).
    pub chosen: usize,
}

/// Chooses blocks by `Σ_h w_h·relu(q_h·k)` of entries of its own (transformers'
/// `DeepseekV4Indexer`).
#[derive(Module, Debug)]
pub struct Indexer {
    /// `[heads·head, query latent]`
    pub wq_b: Linear,
    /// The weights of heads, `[heads, hidden]`.
    pub weights_proj: Linear,
    /// Makes the entries that queries are compared with.
    pub compressor: Compressor,
    #[module(skip)]
    options: IndexOptions,
}

/// Queries that choose blocks.
pub(super) struct IndexQueries {
    /// `[tokens, heads, head]`
    queries: Tensor<3>,
    /// `[tokens, heads]`
    weights: Tensor<2>,
}

impl IndexQueries {
    pub(super) fn of(&self, rows: &Range<usize>) -> Self {
        Self {
            queries: of(&self.queries, rows),
            weights: of(&self.weights, rows),
        }
    }
}

impl Indexer {
    pub(super) fn new(
        hidden: usize,
        query_latent: usize,
        options: IndexOptions,
        compressor: Compressor,
        device: &Device,
    ) -> Self {
        let queries = options.heads.saturating_mul(options.head);
        Self {
            wq_b: Linear::new(query_latent, queries, device),
            weights_proj: Linear::new(hidden, options.heads, device),
            compressor,
            options,
        }
    }

    pub(super) fn queries(
        &self,
        latents: Tensor<2>,
        x: Tensor<2>,
        rotary: &RotaryEmbedding,
    ) -> IndexQueries {
        let IndexOptions { heads, head, .. } = self.options;
        let tokens = x.dims()[0];
        let queries = self.wq_b.forward(latents).reshape([tokens, heads, head]);
        let scale = (heads as f64).powf(-0.5) * (head as f64).powf(-0.5);
        IndexQueries {
            queries: rotary.rotate_last(queries).cast(DType::F32),
            weights: self.weights_proj.forward(x).cast(DType::F32) * scale,
        }
    }

    /// The entries that each query sees, of the first `whole` ones: the best, in order of their place.
    /// In `f32`, on the CPU in the end, where what is seen is laid out.
    pub(super) fn choose(
        &self,
        queries: &IndexQueries,
        keys: &Tensor<2>,
        whole: &[usize],
    ) -> Vec<Vec<usize>> {
        let IndexOptions {
            heads,
            head,
            chosen: most,
        } = self.options;
        let (tokens, entries) = (whole.len(), keys.dims()[0]);
        if whole.iter().all(|&whole| whole <= most) {
            return whole.iter().map(|&whole| (0..whole).collect()).collect();
        }
        let weights: Tensor<3> = queries.weights.clone().unsqueeze_dim(2);
        let products = queries
            .queries
            .clone()
            .reshape([tokens * heads, head])
            .matmul(keys.clone().cast(DType::F32).transpose())
            .reshape([tokens, heads, entries]);
        let scores = (relu(products) * weights).sum_dim(1).into_data();
        let scores: Vec<f32> = scores.iter::<f32>().collect();
        let rows = scores.chunks(entries).zip(whole);
        rows.map(|(scores, &whole)| {
            let mut order: Vec<usize> = (0..whole.min(entries)).collect();
            let most = most.min(order.len());
            best_first(&mut order, scores, most);
            order.truncate(most);
            order.sort_unstable();
            order
        })
        .collect()
    }
}
