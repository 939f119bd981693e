//! Token embeddings, and the output head that may share them.

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Int, Tensor};

use crate::linear::product;
use crate::parameter::unloaded;

/// A vector per token.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[vocabulary, hidden]`
    pub weight: Param<Tensor<2>>,
}

impl Embedding {
    /// An embedding, to be loaded.
    #[must_use]
    pub fn new(vocabulary: usize, hidden: usize, device: &Device) -> Self {
        Self {
            weight: unloaded([vocabulary, hidden], device),
        }
    }

    /// Looks tokens up.
    ///
    /// # Shapes
    ///
    /// `[batch, tokens]` to `[batch, tokens, hidden]`, of type `dtype`.
    #[must_use]
    pub fn forward(&self, ids: Tensor<2, Int>, dtype: DType) -> Tensor<3> {
        let [batch, tokens] = ids.dims();
        let weight = self.weight.val();
        let hidden = weight.dims()[1];
        weight
            .select(0, ids.reshape([batch * tokens]))
            .cast(dtype)
            .reshape([batch, tokens, hidden])
    }

    /// The head of tied embeddings.
    ///
    /// # Shapes
    ///
    /// `[batch, tokens, hidden]` to `[batch, tokens, vocabulary]`.
    #[must_use]
    pub fn head(&self, x: Tensor<3>) -> Tensor<3> {
        product(x, self.weight.val())
    }
}
