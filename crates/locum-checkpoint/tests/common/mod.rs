//! Small safetensors files, written byte by byte so that they can also be wrong.

// Each test program uses its own part of these.
#![allow(dead_code)]

use std::error::Error;
use std::fs;
use std::path::Path;

use locum_checkpoint::{Checkpoint, CheckpointError};

/// What tests return.
pub(crate) type TestResult = Result<(), Box<dyn Error>>;

/// A file from a header, as it is, and the data after it.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

/// The bytes of `f32` values.
pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A file of one-dimensional `f32` tensors.
pub(crate) fn vectors(tensors: &[(&str, &[f32])]) -> Vec<u8> {
    let (mut members, mut data) = (Vec::new(), Vec::new());
    for (name, values) in tensors {
        let begin = data.len();
        data.extend(f32s(values));
        let (end, length) = (data.len(), values.len());
        members.push(format!(
            r#""{name}":{{"dtype":"F32","shape":[{length}],"data_offsets":[{begin},{end}]}}"#
        ));
    }
    file(&format!("{{{}}}", members.join(",")), &data)
}

/// An index from pairs of tensor and shard.
pub(crate) fn index(weight_map: &[(&str, &str)]) -> String {
    let members: Vec<String> = weight_map
        .iter()
        .map(|(tensor, shard)| format!(r#""{tensor}":"{shard}""#))
        .collect();
    format!(r#"{{"weight_map":{{{}}}}}"#, members.join(","))
}

/// Writes a file into a directory.
pub(crate) fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    fs::write(directory.join(name), content).expect("the temporary directory is writable");
}

/// Why a directory is refused.
pub(crate) fn refusal(directory: &Path) -> CheckpointError {
    Checkpoint::open(directory).expect_err("this checkpoint should be refused")
}

/// Why the bytes of a file are refused.
pub(crate) fn refusal_of(bytes: Vec<u8>) -> CheckpointError {
    Checkpoint::from_bytes("weights", bytes).expect_err("these bytes should be refused")
}

/// Asserts that a message holds all of these.
#[track_caller]
pub(crate) fn assert_says(error: &CheckpointError, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}
