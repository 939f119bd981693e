//! `locum inspect` and `locum logits`: what they print and write.
#![allow(clippy::unwrap_used)]

mod common;

use common::{fixture, stdout};
use safetensors::SafeTensors;
use serde_json::{Value, json};

#[test]
fn table_names_layers_experts_bytes_and_format() {
    let table = stdout(&["inspect"]);
    for line in [
        "substitution  approximate_experts",
        "    0       16        12            4   392 kB  0 2 9 12",
        "total       64        48           16  1.57 MB",
        "weights 6.32 MB in memory, 7.89 MB if no expert were substituted",
    ] {
        assert!(
            table.lines().any(|found| found == line),
            "{line:?} is not in:\n{table}"
        );
    }
}

#[test]
fn json_has_the_same_numbers() {
    let explicit = fixture("olmoe/explicit");
    let report = stdout(&["inspect", "--json", "--model", explicit.to_str().unwrap()]);
    let named_alone = stdout(&["inspect", "--json", explicit.to_str().unwrap()]);
    assert_eq!(report, named_alone);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        report["format"],
        json!("compression_config.transform_config.expert_substitution")
    );
    // Three f32 matrices of 48 × 64 an expert, constants of 64.
    assert_eq!(
        report["layers"][1],
        json!({
            "layer": 1,
            "logical": 8,
            "retained": [2, 3, 4],
            "substituted": [0, 1, 5, 6, 7],
            "retained_bytes": 3 * 36_864,
            "constant_bytes": 5 * 256,
            "saved_bytes": 5 * (36_864 - 256),
        })
    );
    let unpruned = std::fs::metadata(fixture("olmoe/base/model.safetensors"))
        .unwrap()
        .len();
    let header = 8 + {
        let bytes = std::fs::read(fixture("olmoe/base/model.safetensors")).unwrap();
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    };
    assert_eq!(report["unpruned_weights_bytes"], json!(unpruned - header));
}

#[test]
fn unpruned_model_has_no_format() {
    let base = fixture("olmoe/base");
    let report = stdout(&["inspect", "--json", "--model", base.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["format"], Value::Null);
    assert_eq!(report["saved_bytes"], json!(0));
}

/// The largest difference between two files' tensors of this name, and its shape.
fn difference(a: &[u8], name_a: &str, b: &[u8], name_b: &str) -> (Vec<usize>, f32) {
    let (a, b) = (
        SafeTensors::deserialize(a).unwrap(),
        SafeTensors::deserialize(b).unwrap(),
    );
    let (a, b) = (a.tensor(name_a).unwrap(), b.tensor(name_b).unwrap());
    assert_eq!(a.shape(), b.shape());
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    };
    let largest = values(a.data())
        .into_iter()
        .zip(values(b.data()))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    (a.shape().to_vec(), largest)
}

#[test]
fn logits_are_those_of_transformers() {
    let directory = fixture("olmoe/approx");
    let reference = directory.join("reference.safetensors");
    let out = tempfile::TempDir::new().unwrap();
    let file = out.path().join("logits.safetensors");
    for cached in [&[][..], &["--cached"]] {
        let arguments = [
            "logits",
            "--model",
            directory.to_str().unwrap(),
            "--input-ids-file",
            reference.to_str().unwrap(),
            "--out",
            file.to_str().unwrap(),
        ];
        assert_eq!(stdout(&[&arguments[..], cached].concat()), "");
        let (shape, difference) = difference(
            &std::fs::read(&file).unwrap(),
            "logits",
            &std::fs::read(&reference).unwrap(),
            "substituted_logits",
        );
        assert_eq!(shape, [2, 40, 160]);
        assert!(difference <= 1e-4, "{cached:?}: {difference}");
    }
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn output_keeps_links_and_permissions_and_devices() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::TempDir::new().unwrap();
    let target = folder.path().join("target");
    let link = folder.path().join("link");
    std::fs::write(&target, "").unwrap();
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("target", &link).unwrap();
    stdout(&[
        "logits",
        "--input-ids",
        "1,2",
        "--out",
        link.to_str().unwrap(),
    ]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let written = std::fs::read(&target).unwrap();
    assert_eq!(
        SafeTensors::deserialize(&written).unwrap().names(),
        ["logits"]
    );
    let mode = std::fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    // A device stays one.
    stdout(&["logits", "--input-ids", "1,2", "--out", "/dev/stderr"]);
}
