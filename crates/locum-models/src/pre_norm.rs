//! The decoder layer that most families have: attention, then a feed-forward, each of what is
//! normalised before it and added to what it was given.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use locum_macros::MoeLayers;
use locum_nn::{FeedForward, RmsNorm, SelfAttention, SparseMoe, Step};

use crate::decoder::{DecoderConfig, DecoderLayer};

/// `x + attention(norm(x))`, then `x + feed_forward(norm(x))` (pre-norm: arXiv 2002.04745).
///
/// Families name the feed-forward differently, and so do the fields here: of `mlp` and
/// `block_sparse_moe` a layer has one, and the other has no parameters.
#[derive(Module, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct PreNormLayer<A: SelfAttention> {
    input_layernorm: RmsNorm,
    self_attn: A,
    post_attention_layernorm: RmsNorm,
    #[substitution(layers)]
    mlp: Option<FeedForward>,
    #[substitution(layers)]
    block_sparse_moe: Option<SparseMoe>,
}

impl<A: SelfAttention> PreNormLayer<A> {
    /// A layer whose feed-forward is at `mlp`, to be loaded.
    #[must_use]
    pub fn with_mlp(
        config: &DecoderConfig,
        self_attn: A,
        mlp: FeedForward,
        device: &Device,
    ) -> Self {
        Self {
            mlp: Some(mlp),
            ..Self::without_feed_forward(config, self_attn, device)
        }
    }

    /// A layer whose experts are at `block_sparse_moe`, to be loaded (Mixtral, MiniMax).
    #[must_use]
    pub fn with_block_sparse_moe(
        config: &DecoderConfig,
        self_attn: A,
        moe: SparseMoe,
        device: &Device,
    ) -> Self {
        Self {
            block_sparse_moe: Some(moe),
            ..Self::without_feed_forward(config, self_attn, device)
        }
    }

    fn without_feed_forward(config: &DecoderConfig, self_attn: A, device: &Device) -> Self {
        let norm = || RmsNorm::new(config.hidden, config.epsilon, device);
        Self {
            input_layernorm: norm(),
            self_attn,
            post_attention_layernorm: norm(),
            mlp: None,
            block_sparse_moe: None,
        }
    }
}

impl<A: SelfAttention> DecoderLayer for PreNormLayer<A> {
    fn forward(&self, x: Tensor<2>, layer: usize, step: &mut Step<'_>) -> Tensor<2> {
        let normed = self.input_layernorm.forward(x.clone());
        let mut x = x + self.self_attn.forward(normed, layer, step);
        let normed = self.post_attention_layernorm.forward(x.clone());
        if let Some(moe) = &self.block_sparse_moe {
            x = x + moe.forward_observed(normed.clone(), step.observer());
        }
        if let Some(mlp) = &self.mlp {
            x = x + mlp.forward_observed(normed, step.observer());
        }
        x
    }
}

impl<A: SelfAttention> eplb::DecoderLayer for PreNormLayer<A> {
    type Moe = SparseMoe;

    fn feed_forward(&self) -> eplb::FeedForward<'_, SparseMoe> {
        match (&self.block_sparse_moe, &self.mlp) {
            (Some(moe), _) | (None, Some(FeedForward::Sparse(moe))) => eplb::FeedForward::Moe(moe),
            (None, Some(FeedForward::Dense(_))) => eplb::FeedForward::Dense,
            (None, None) => eplb::FeedForward::Placeholder,
        }
    }
}
