//! A fixture that is changed before it is read.

use std::collections::BTreeMap;
use std::path::Path;

use locum::models::{LoadOptions, Model, ModelError, ModelFiles};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

use crate::fixture;

/// A tensor of an edited model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTensor {
    /// Its type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its elements, little-endian.
    pub bytes: Vec<u8>,
}

impl StoredTensor {
    /// The elements of an `f32` tensor.
    #[must_use]
    pub fn elements(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        let (elements, _) = self.bytes.as_chunks::<4>();
        elements.iter().copied().map(f32::from_le_bytes).collect()
    }

    /// The same `f32` tensor with other elements.
    #[must_use]
    pub fn with_elements(&self, elements: impl IntoIterator<Item = f32>) -> Self {
        let bytes = elements.into_iter().flat_map(f32::to_le_bytes);
        Self {
            bytes: bytes.collect(),
            ..self.clone()
        }
    }

    /// An `f32` tensor's elements rounded to `bf16`, to nearest, ties to even.
    #[must_use]
    pub fn to_bf16(&self) -> Self {
        let rounded = self.elements().into_iter().flat_map(|element| {
            let bits = element.to_bits();
            let up = 0x7fff + ((bits >> 16) & 1);
            (((bits + up) >> 16) as u16).to_le_bytes()
        });
        Self {
            dtype: Dtype::BF16,
            shape: self.shape.clone(),
            bytes: rounded.collect(),
        }
    }

    /// A `bf16` tensor's elements as `f32`, which holds them all.
    #[must_use]
    pub fn widened(&self) -> Self {
        assert_eq!(self.dtype, Dtype::BF16);
        let (elements, _) = self.bytes.as_chunks::<2>();
        let wide = elements.iter().flat_map(|&[low, high]| [0, 0, low, high]);
        Self {
            dtype: Dtype::F32,
            shape: self.shape.clone(),
            bytes: wide.collect(),
        }
    }
}

/// A model directory to change before it is written.
#[derive(Clone, Debug)]
pub struct EditedModel {
    /// Its `config.json`.
    pub config: Value,
    /// Its weights.
    pub tensors: BTreeMap<String, StoredTensor>,
}

impl EditedModel {
    /// A fixture as it is.
    #[must_use]
    pub fn of_fixture(name: &str) -> Self {
        let directory = fixture(name);
        let config = std::fs::read(directory.join("config.json")).unwrap();
        let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let tensor = StoredTensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            (name.to_owned(), tensor)
        });
        Self {
            config: serde_json::from_slice(&config).unwrap(),
            tensors: tensors.collect(),
        }
    }

    /// Removes a field of the configuration, which must be there.
    pub fn remove_field(&mut self, field: &str) {
        let removed = self.config.as_object_mut().unwrap().remove(field);
        assert!(removed.is_some(), "{field} is not in the fixture's config");
    }

    /// Writes a model directory.
    pub fn write_to(&self, directory: &Path) {
        let config = serde_json::to_vec(&self.config).unwrap();
        std::fs::write(directory.join("config.json"), config).unwrap();
        let views = self.tensors.iter().map(|(name, tensor)| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name.as_str(), view.unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(directory.join("model.safetensors"), file).unwrap();
    }

    /// Writes the model to a temporary directory and plans it.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn plan(&self, options: &LoadOptions) -> Result<Model, ModelError> {
        let directory = tempfile::TempDir::new().unwrap();
        self.write_to(directory.path());
        Model::plan(&ModelFiles::open(directory.path())?, options)
    }

    /// Writes the model to a temporary directory and loads it.
    #[must_use]
    pub fn load(&self, options: &LoadOptions) -> Model {
        let mut model = self.plan(options).unwrap();
        model.load(|_| {}).unwrap();
        model
    }
}
