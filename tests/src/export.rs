//! Exporting fixtures, and reading what came of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use locum::checkpoint::Checkpoint;
use locum::prune::{Export, ExportOptions, Plan, Replacement, Statistics, Subject};
use locum::substitution::ConfigFormat;
use safetensors::SafeTensors;
use tempfile::TempDir;

use crate::{ByExpert, PARITY, StoredTensor, contents, plan_of, statistics_with_means};

/// Both ways to declare constants.
pub const FORMATS: [ConfigFormat; 2] = [
    ConfigFormat::ApproximateExperts,
    ConfigFormat::ExpertSubstitution,
];

/// The fixtures that are unpruned, each with its pruned one, which another implementation ran.
pub fn pairs() -> impl Iterator<Item = (&'static str, String, f32)> {
    let fixtures = PARITY.iter().flat_map(|parity| {
        let fixtures = parity.fixtures.iter();
        fixtures.map(|name| (*name, parity.tolerance))
    });
    fixtures.filter_map(|(name, tolerance)| {
        let family = name.strip_suffix("/base")?;
        Some((name, format!("{family}/approx"), tolerance))
    })
}

/// How to write a checkpoint in one file.
#[must_use]
pub fn options(format: ConfigFormat) -> ExportOptions {
    ExportOptions {
        format,
        ..ExportOptions::default()
    }
}

/// Exports to `out` below a directory.
#[must_use]
pub fn export(
    subject: &Subject,
    plan: &Plan,
    statistics: &Statistics,
    options: &ExportOptions,
    directory: &TempDir,
    out: &str,
) -> PathBuf {
    let constants = Replacement::Mean
        .constants(subject, plan, Some(statistics))
        .unwrap();
    assert_eq!(constants.never_routed, []);
    let out = directory.path().join(out);
    let export = Export::new(subject, plan, &constants, options).unwrap();
    let mut written = 0;
    export
        .write(&out, false, &mut |bytes| written += bytes)
        .unwrap();
    assert_eq!(written, export.bytes_after());
    assert_eq!(Checkpoint::open(&out).unwrap().total_bytes(), written);
    out
}

/// Exports a model with constants of all the experts that have some in `means`.
#[must_use]
pub fn export_means(
    model: &Path,
    means: &ByExpert<Vec<f32>>,
    format: ConfigFormat,
    directory: &TempDir,
    out: &str,
) -> PathBuf {
    let subject = Subject::open(model).unwrap();
    let plan = plan_of(&subject, |layer, expert| {
        means.contains_key(&(layer, expert))
    });
    let statistics = statistics_with_means(&subject, means);
    export(
        &subject,
        &plan,
        &statistics,
        &options(format),
        directory,
        out,
    )
}

/// Every tensor of a directory, its files checked against what the `safetensors` crate reads.
#[must_use]
pub fn tensors(directory: &Path) -> BTreeMap<String, StoredTensor> {
    let mut tensors = BTreeMap::new();
    for (name, bytes) in contents(directory) {
        if !name.ends_with(".safetensors") {
            continue;
        }
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in file.tensors() {
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            let size = view.dtype().bitsize() / 8;
            assert!(start.is_multiple_of(size), "{name} is not aligned");
            let tensor = StoredTensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            assert!(tensors.insert(name, tensor).is_none());
        }
    }
    tensors
}

/// The tensors of a directory's `model.safetensors`.
#[must_use]
pub fn tensors_of_one_file(directory: &Path) -> BTreeMap<String, StoredTensor> {
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
    tensors.collect()
}

/// Compares all tensors of an exported directory with those of one with a single file.
#[track_caller]
pub fn assert_same_tensors(found: &Path, expected: &Path) {
    let (found, expected) = (tensors(found), tensors_of_one_file(expected));
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (name, tensor) in found {
        assert!(tensor == expected[&name], "{name}");
    }
}
