//! What the workspace's tests share: fixtures, and numbers from them.
//!
//! Test support: a fixture that cannot be read is a failed test, so functions panic.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

pub mod calibrating;
mod edited;
mod export;
mod parity;
mod pruning;

use std::path::{Path, PathBuf};

use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::DType;
use safetensors::{Dtype, SafeTensors};

pub use edited::{EditedModel, StoredTensor};
pub use export::{
    FORMATS, assert_same_tensors, export, export_means, options, pairs, tensors,
    tensors_of_one_file,
};
pub use parity::{Case, PARITY, Parity, cases};
pub use pruning::{ByExpert, constants_of, contents, plan_of, statistics_with_means};

/// A file or folder of `tests/fixtures`.
#[must_use]
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

/// The directory of a tiny-olmoe model; the one pruned by a quarter is the command line's asset.
#[must_use]
pub fn tiny_olmoe(name: &str) -> PathBuf {
    if name == "tiny-olmoe-mone25" {
        return Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../crates/locum-cli/assets")
            .join(name);
    }
    fixture(name)
}

/// A loaded model.
#[must_use]
pub fn load(directory: &Path, activations: DType) -> Model {
    let options = LoadOptions {
        activations,
        ..LoadOptions::default()
    };
    let mut model = Model::plan(&ModelFiles::open(directory).unwrap(), &options).unwrap();
    model.load(|_| {}).unwrap();
    model
}

/// Tensors that another implementation computed.
pub struct Reference {
    bytes: Vec<u8>,
}

impl Reference {
    /// Opens a `reference.safetensors`.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        Self {
            bytes: std::fs::read(directory.join("reference.safetensors")).unwrap(),
        }
    }

    fn tensor<const N: usize, T>(
        &self,
        name: &str,
        dtype: Dtype,
        from: fn([u8; N]) -> T,
    ) -> (Vec<usize>, Vec<T>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        let (chunks, _) = tensor.data().as_chunks::<N>();
        let values = chunks.iter().map(|chunk| from(*chunk)).collect();
        (tensor.shape().to_vec(), values)
    }

    /// An `f32` tensor: its shape and its elements.
    #[must_use]
    pub fn f32(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        self.tensor(name, Dtype::F32, f32::from_le_bytes)
    }

    /// An `i64` tensor: its shape and its elements.
    #[must_use]
    pub fn i64(&self, name: &str) -> (Vec<usize>, Vec<i64>) {
        self.tensor(name, Dtype::I64, i64::from_le_bytes)
    }

    /// An `i64` matrix by rows.
    #[must_use]
    pub fn rows(&self, name: &str) -> Vec<Vec<i64>> {
        let (shape, values) = self.i64(name);
        values.chunks(shape[1]).map(<[i64]>::to_vec).collect()
    }
}

/// The largest absolute difference. NaN anywhere is infinitely far.
#[must_use]
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .map(|d| if d.is_nan() { f32::INFINITY } else { d })
        .fold(0.0, f32::max)
}

/// Logits of whole sequences at once, `[batch, tokens, vocabulary]`.
#[must_use]
pub fn full_logits(model: &Model, ids: &[Vec<i64>]) -> Vec<f32> {
    model
        .logits(ids, &mut vec![model.new_cache(); ids.len()], Logits::All)
        .unwrap()
}

/// Logits of sequences whose first `prefix` tokens are fed at once, the others one by one.
#[must_use]
pub fn cached_logits(model: &Model, ids: &[Vec<i64>], prefix: usize) -> Vec<f32> {
    let (batch, tokens) = (ids.len(), ids[0].len());
    let vocabulary = model.limits().vocabulary;
    let mut caches = vec![model.new_cache(); batch];
    let mut all = vec![f32::NAN; batch * tokens * vocabulary];
    let mut start = 0;
    while start < tokens {
        let end = if start == 0 { prefix.max(1) } else { start + 1 };
        let step: Vec<Vec<i64>> = ids.iter().map(|row| row[start..end].to_vec()).collect();
        let logits = model.logits(&step, &mut caches, Logits::All).unwrap();
        let length = (end - start) * vocabulary;
        for (row, logits) in logits.chunks(length).enumerate() {
            all[(row * tokens + start) * vocabulary..][..length].copy_from_slice(logits);
        }
        start = end;
    }
    all
}
