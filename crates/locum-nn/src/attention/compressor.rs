//! From blocks of tokens to one entry each: what attention sees beyond its window.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Device, Tensor};

use crate::cache::BlockCache;
use crate::parameter::unloaded;
use crate::{Linear, RmsNorm, RotaryConfig};

/// Makes one entry of each block of tokens: their values, weighted by a softmax of their gates,
/// element by element, then normalised and rotated to the position of the block's first token
/// (DeepSeek-V4; transformers' `DeepseekV4HCACompressor` and `DeepseekV4CSACompressor`).
///
/// Where blocks overlap, a token has two values and two gates: one for the next block's entry, then
/// one for its own block's.
#[derive(Module, Debug)]
pub struct Compressor {
    /// Values, `[width, hidden]`; the width is the entry's size, twice that where blocks overlap.
    pub wkv: Linear,
    /// Gates, `[width, hidden]`.
    pub wgate: Linear,
    /// What is added to gates, by the token's place in its block: `[block, width]`.
    pub ape: Param<Tensor<2>>,
    /// `[size]`
    pub norm: RmsNorm,
    #[module(skip)]
    options: CompressorOptions,
}

/// What differs between compressors.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CompressorOptions {
    /// Tokens of a block.
    pub(super) block: usize,
    /// The size of an entry.
    pub(super) size: usize,
    /// Whether a block's tokens take part in the next block's entry.
    pub(super) overlapping: bool,
    /// Positions.
    pub(super) rotary: RotaryConfig,
    /// ε of the normalisation.
    pub(super) epsilon: f64,
}

impl CompressorOptions {
    /// Elements of a token's values.
    pub(super) fn width(&self) -> usize {
        self.size * if self.overlapping { 2 } else { 1 }
    }

    /// Elements that the cache holds however few blocks there are, at most: the tokens of a block
    /// that is not whole, and what the last whole one leaves to it.
    pub(super) fn pending_elements(&self) -> usize {
        let last = if self.overlapping { self.size } else { 0 };
        2 * ((self.block - 1) * self.width() + self.block * last)
    }
}

impl Compressor {
    pub(super) fn new(hidden: usize, options: CompressorOptions, device: &Device) -> Self {
        let width = options.width();
        Self {
            wkv: Linear::new(hidden, width, device),
            wgate: Linear::new(hidden, width, device),
            ape: unloaded([options.block, width], device),
            norm: RmsNorm::new(options.size, options.epsilon, device),
            options,
        }
    }

    /// Values and gates of some tokens.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to `[tokens, width]` each.
    pub(super) fn project(&self, x: Tensor<2>) -> [Tensor<2>; 2] {
        [self.wkv.forward(x.clone()), self.wgate.forward(x)]
    }

    /// Appends the values and gates of some tokens, and gives the entries of all whole blocks so far.
    ///
    /// # Shapes
    ///
    /// `[tokens, width]` each, to `[blocks, size]`.
    pub(super) fn append(
        &self,
        tokens: [Tensor<2>; 2],
        cache: &mut BlockCache,
    ) -> Option<Tensor<2>> {
        let CompressorOptions { block, .. } = self.options;
        let tokens = match cache.pending.take() {
            None => tokens,
            Some(pending) => joined(pending, tokens, 0),
        };
        let count = tokens[0].dims()[0];
        let blocks = count / block;
        if count > blocks * block {
            cache.pending = Some(part(&tokens, 0, blocks * block..count));
        }
        if blocks > 0 {
            let entries = self.entries(part(&tokens, 0, 0..blocks * block), blocks, cache);
            cache.entries.append(entries);
        }
        Some(cache.entries.all()?.squeeze_dim(0))
    }

    /// The entries of some whole blocks, `[1, blocks, size]`.
    fn entries(&self, tokens: [Tensor<2>; 2], blocks: usize, cache: &mut BlockCache) -> Tensor<3> {
        let CompressorOptions {
            block,
            size,
            overlapping,
            ref rotary,
            ..
        } = self.options;
        let dtype = tokens[0].dtype();
        let by_block = |x: Tensor<2>| -> Tensor<3> {
            let width = x.dims()[1];
            x.cast(DType::F32).reshape([blocks, block, width])
        };
        let [values, gates] = tokens.map(by_block);
        let bias: Tensor<3> = self.ape.val().cast(DType::F32).unsqueeze_dim(0);
        let mut tokens = [values, gates + bias];
        if overlapping {
            let next = part(&tokens, 2, 0..size);
            let own = part(&tokens, 2, size..2 * size);
            tokens = joined(self.before(&next, blocks, cache), own, 1);
            let last = part(&next, 0, blocks - 1..blocks);
            cache.last = Some(last.map(|x| x.squeeze_dim(0)));
        }
        let [values, gates] = tokens;
        let entries = (values * softmax(gates, 1)).sum_dim(1).squeeze_dim::<2>(1);
        let entries = self.norm.forward(entries.cast(dtype));
        let first = cache.entries.used();
        let positions = (first..first + blocks).map(|entry| entry * block);
        let rotary = rotary.embedding(positions, &entries.device());
        rotary.rotate_last(entries.unsqueeze_dim(1)).swap_dims(0, 1)
    }

    /// What each block's predecessor gives to its entry; the first block has none, and gates that let
    /// nothing pass.
    fn before(&self, next: &[Tensor<3>; 2], blocks: usize, cache: &BlockCache) -> [Tensor<3>; 2] {
        let CompressorOptions { block, size, .. } = self.options;
        let first = match &cache.last {
            Some(last) => last.clone().map(|x| x.unsqueeze_dim(0)),
            None => [0.0, f32::NEG_INFINITY].map(|value| {
                let device = next[0].device();
                Tensor::full([1, block, size], value, (&device, DType::F32))
            }),
        };
        if blocks == 1 {
            return first;
        }
        joined(first, part(next, 0, 0..blocks - 1), 0)
    }
}

/// The same part of both.
fn part<const D: usize>(
    both: &[Tensor<D>; 2],
    dim: usize,
    range: std::ops::Range<usize>,
) -> [Tensor<D>; 2] {
    both.clone().map(|x| x.slice_dim(dim, range.clone()))
}

/// Each of the one with that of the other.
fn joined<const D: usize>(a: [Tensor<D>; 2], b: [Tensor<D>; 2], dim: usize) -> [Tensor<D>; 2] {
    let ([a0, a1], [b0, b1]) = (a, b);
    [
        Tensor::cat(vec![a0, b0], dim),
        Tensor::cat(vec![a1, b1], dim),
    ]
}
