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
    /// `[tokens]` to `[tokens, hidden]`, of type `dtype`.
    #[must_use]
    pub fn forward(&self, ids: Tensor<1, Int>, dtype: DType) -> Tensor<2> {
        self.weight.val().select(0, ids).cast(dtype)
    }

    /// The head of tied embeddings.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to `[tokens, vocabulary]`.
    #[must_use]
    pub fn head(&self, x: Tensor<2>) -> Tensor<2> {
        product(x, self.weight.val())
    }
}
