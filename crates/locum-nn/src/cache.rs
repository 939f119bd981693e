//! What a sequence's tokens so far leave behind for those to come.

use burn::tensor::Tensor;

/// The cache of one sequence: an entry per decoder layer.
#[derive(Clone, Debug)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    tokens: usize,
}

impl KvCache {
    /// An empty cache for a model of `layers` decoder layers.
    #[must_use]
    pub fn new(layers: usize) -> Self {
        Self {
            layers: vec![LayerCache::default(); layers],
            tokens: 0,
        }
    }

    /// Tokens so far: the position of the next one.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The entry of a layer; a new layer gets an empty one.
    pub(crate) fn layer(&mut self, layer: usize) -> &mut LayerCache {
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, LayerCache::default);
        }
        &mut self.layers[layer]
    }

    /// Counts tokens that all layers have appended.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }
}

/// Keys and values of one layer, or whatever its attention keeps.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    keys: Growing,
    values: Growing,
    /// The last tokens of attention within a window, `[tokens, size]`.
    window: Option<Tensor<2>>,
    /// What is beyond the window.
    pub(crate) blocks: BlockCache,
    /// By what blocks are chosen.
    pub(crate) index: BlockCache,
}

/// Tokens that are kept as one entry per block.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockCache {
    /// An entry per whole block, `[1, blocks, size]`.
    pub(crate) entries: Growing,
    /// Values and gates of the tokens of the block that is not whole yet, `[tokens, width]` each.
    pub(crate) pending: Option<[Tensor<2>; 2]>,
    /// Values and gates by which the last whole block takes part in the next one's entry,
    /// `[block, size]` each.
    pub(crate) last: Option<[Tensor<2>; 2]>,
}

impl BlockCache {
    /// Tokens so far, in blocks of `block`.
    pub(crate) fn tokens(&self, block: usize) -> usize {
        let pending = self.pending.as_ref().map_or(0, |[v, _]| v.dims()[0]);
        self.entries.used * block + pending
    }
}

impl LayerCache {
    /// Appends keys and values, and gives all so far.
    ///
    /// # Shapes
    ///
    /// `[heads, tokens, size]` each, to the same with all tokens; heads and sizes of the two may
    /// differ.
    pub fn append(&mut self, keys: Tensor<3>, values: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        (self.keys.append(keys), self.values.append(values))
    }

    /// Appends tokens, gives them after those that the first of them sees within a window of
    /// `window`, and keeps those that the next one will see.
    ///
    /// # Shapes
    ///
    /// `[tokens, size]` to the same with up to `window − 1` tokens more.
    pub(crate) fn slide(&mut self, tokens: Tensor<2>, window: usize) -> Tensor<2> {
        let all = match self.window.take() {
            Some(before) => Tensor::cat(vec![before, tokens], 0),
            None => tokens,
        };
        let seen = all.dims()[0];
        let kept = seen.min(window.saturating_sub(1));
        self.window = (kept > 0).then(|| all.clone().slice_dim(0, seen - kept..seen));
        all
    }
}

/// A tensor that grows along dimension 1, with room to spare so that a token is not a copy of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growing {
    buffer: Option<Tensor<3>>,
    used: usize,
}

impl Growing {
    /// Elements along dimension 1 so far.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// All so far.
    pub(crate) fn all(&self) -> Option<Tensor<3>> {
        let buffer = self.buffer.clone()?;
        Some(buffer.slice_dim(1, 0..self.used))
    }

    /// Appends, and gives all so far.
    pub(crate) fn append(&mut self, more: Tensor<3>) -> Tensor<3> {
        let [heads, tokens, size] = more.dims();
        let used = self.used + tokens;
        let buffer = match self.buffer.take() {
            // A first pass over a whole sequence may be the only one: no room to spare yet.
            None => more,
            Some(buffer) => {
                let room = buffer.dims()[1];
                let buffer = if used > room {
                    let spare = used.next_power_of_two().max(64) - room;
                    let spare =
                        Tensor::zeros([heads, spare, size], (&buffer.device(), buffer.dtype()));
                    Tensor::cat(vec![buffer, spare], 1)
                } else {
                    buffer
                };
                buffer.slice_assign([0..heads, self.used..used, 0..size], more)
            }
        };
        self.used = used;
        let all = buffer.clone().slice_dim(1, 0..used);
        self.buffer = Some(buffer);
        all
    }
}
