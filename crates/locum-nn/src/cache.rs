//! Keys and values of the tokens so far.

use burn::tensor::{DType, Tensor};

/// The cache of a model: one entry per decoder layer.
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

    /// The entry of a layer, `None` beyond the last.
    pub fn layer(&mut self, layer: usize) -> Option<&mut LayerCache> {
        self.layers.get_mut(layer)
    }

    /// Counts tokens that all layers have appended.
    pub fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    /// Bytes that one token takes in all layers, of a model with these heads and activations.
    #[must_use]
    pub fn bytes_per_token(layers: usize, kv_heads: usize, head: usize, dtype: DType) -> usize {
        2 * layers * kv_heads * head * dtype.size()
    }
}

/// Keys and values of one layer.
#[derive(Clone, Debug, Default)]
pub struct LayerCache {
    keys: Growing,
    values: Growing,
}

impl LayerCache {
    /// Appends keys and values, and gives all so far.
    ///
    /// # Shapes
    ///
    /// `[batch, kv_heads, tokens, head]` each, to the same with all tokens.
    pub fn append(&mut self, keys: Tensor<4>, values: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        (self.keys.append(keys), self.values.append(values))
    }
}

/// A tensor that grows along dimension 2, with room to spare so that a token is not a copy of all.
#[derive(Clone, Debug, Default)]
struct Growing {
    buffer: Option<Tensor<4>>,
    used: usize,
}

impl Growing {
    fn append(&mut self, more: Tensor<4>) -> Tensor<4> {
        let [batch, heads, tokens, head] = more.dims();
        let used = self.used + tokens;
        let buffer = match self.buffer.take() {
            // A first pass over a whole sequence may be the only one: no room to spare yet.
            None => more,
            Some(buffer) => {
                let room = buffer.dims()[2];
                let buffer = if used > room {
                    let spare = used.next_power_of_two().max(64) - room;
                    let spare = Tensor::zeros(
                        [batch, heads, spare, head],
                        (&buffer.device(), buffer.dtype()),
                    );
                    Tensor::cat(vec![buffer, spare], 2)
                } else {
                    buffer
                };
                buffer.slice_assign([0..batch, 0..heads, self.used..used, 0..head], more)
            }
        };
        self.used = used;
        let all = buffer.clone().slice_dim(2, 0..used);
        self.buffer = Some(buffer);
        all
    }
}
