//! Headers that do not describe the bytes behind them.

mod common;

use common::{assert_says, f32s, file, refusal_of, vectors};
use locum_checkpoint::CheckpointError;

/// A file with these members in its header, and 16 bytes of data.
fn with_members(members: &str) -> CheckpointError {
    refusal_of(file(&format!("{{{members}}}"), &[0; 16]))
}

#[test]
fn a_file_cut_short_names_the_tensor_that_is_not_whole() {
    let mut bytes = vectors(&[("a", &[1.0, 2.0]), ("b", &[3.0])]);
    bytes.truncate(bytes.len() - 1);
    let error = refusal_of(bytes);
    assert!(matches!(error, CheckpointError::TensorBeyondFile { .. }));
    assert_says(
        &error,
        &[
            "`weights` is truncated",
            "tensor `b` ends at byte 12 of the data and the file holds 11",
        ],
    );
}

#[test]
fn a_file_cut_short_in_its_header() {
    let bytes = vectors(&[("a", &[1.0])]);
    let header = bytes.len() - 4;
    for length in [1, 7] {
        let error = refusal_of(bytes[..length].to_vec());
        assert!(matches!(error, CheckpointError::HeaderBeyondFile { .. }));
        assert_says(
            &error,
            &[&format!("takes 8 bytes and the file has {length}")],
        );
    }
    for length in [8, header - 1] {
        assert_says(
            &refusal_of(bytes[..length].to_vec()),
            &[&format!("takes {header} bytes and the file has {length}")],
        );
    }
}

#[test]
fn a_header_over_the_limit() {
    for length in [100_000_001, u64::MAX] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend([0; 100]);
        let error = refusal_of(bytes);
        assert!(matches!(error, CheckpointError::HeaderTooLarge { .. }));
        assert_says(
            &error,
            &[&format!("a header of {length} bytes"), "limit is 100000000"],
        );
    }
}

#[test]
fn a_file_of_another_kind() {
    let error = refusal_of(b"PK\x03\x04 this is a zip archive of PyTorch".to_vec());
    assert_says(&error, &["`weights` is no safetensors file"]);
}

#[test]
fn data_after_the_last_tensor() {
    let mut bytes = vectors(&[("a", &[1.0])]);
    bytes.push(0);
    let error = refusal_of(bytes);
    assert!(matches!(error, CheckpointError::TrailingBytes { .. }));
    assert_says(&error, &["they take 4 bytes and 5 are there"]);
}

#[test]
fn tensors_with_a_hole_between_them() {
    let error = with_members(
        r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#,
    );
    assert!(matches!(error, CheckpointError::TensorOffsets { .. }));
    assert_says(
        &error,
        &["tensor `b` is at bytes 8..16 of the data and should start at 4"],
    );
}

#[test]
fn tensors_that_overlap() {
    let error = with_members(
        r#""b":{"dtype":"F32","shape":[3],"data_offsets":[4,16]},
           "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#,
    );
    assert_says(
        &error,
        &["tensor `b` is at bytes 4..16 of the data and should start at 8"],
    );
}

#[test]
fn a_tensor_that_ends_before_it_starts() {
    let error = with_members(r#""a":{"dtype":"F32","shape":[1],"data_offsets":[16,0]}"#);
    assert_says(&error, &["tensor `a` is at bytes 16..0"]);
}

#[test]
fn offsets_beyond_the_file() {
    let error = with_members(&format!(
        r#""a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},
           "b":{{"dtype":"U8","shape":[1],"data_offsets":[{0},{1}]}}"#,
        u64::MAX - 1,
        u64::MAX
    ));
    assert!(matches!(error, CheckpointError::TensorBeyondFile { .. }));
    assert_says(&error, &["tensor `a` ends at byte 18446744073709551614"]);
}

#[test]
fn a_shape_that_does_not_fit_the_offsets() {
    let error = with_members(r#""a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}"#);
    assert!(matches!(error, CheckpointError::TensorSize { .. }));
    assert_says(
        &error,
        &["tensor `a` is f32 [2, 3], which takes 24 bytes, and has 16"],
    );
}

#[test]
fn shapes_that_overflow() {
    for shape in ["[18446744073709551615,2]", "[4611686018427387904]"] {
        let error = with_members(&format!(
            r#""a":{{"dtype":"F32","shape":{shape},"data_offsets":[0,16]}}"#
        ));
        assert!(matches!(
            error,
            CheckpointError::TensorSize { expected: None, .. }
        ));
        assert_says(&error, &["tensor `a`", "takes no possible number of bytes"]);
    }
}

#[test]
fn half_a_byte_is_no_size() {
    let error = with_members(r#""a":{"dtype":"F4","shape":[31],"data_offsets":[0,16]}"#);
    assert_says(&error, &["tensor `a` is F4 [31], which takes no possible"]);
}

#[test]
fn a_name_twice_in_one_header() {
    let error = with_members(
        r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}"#,
    );
    assert!(matches!(error, CheckpointError::DuplicateTensor { .. }));
    assert_says(
        &error,
        &["tensor `a` is named twice, both times in `weights`"],
    );
}

#[test]
fn a_name_twice_in_two_spellings() {
    let error = with_members(
        r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}"#,
    );
    assert_says(&error, &["tensor `a` is named twice"]);
}

#[test]
fn members_that_are_no_tensors() {
    for (members, reason) in [
        (r#""a":7"#, "`a`: invalid type: integer `7`"),
        (
            r#""a":{"dtype":"F7","shape":[],"data_offsets":[0,1]}"#,
            "`a`: unknown variant `F7`",
        ),
        (
            r#""a":{"dtype":"F32","data_offsets":[0,16]}"#,
            "`a`: missing field `shape`",
        ),
        (
            r#""a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}"#,
            "`a`: invalid value: integer `-4`",
        ),
        (
            r#""a":{"dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]}"#,
            "`a`: duplicate field `shape`",
        ),
        (
            r#""a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"__metadata__":{"n":1}"#,
            "invalid type: integer `1`, expected a string",
        ),
    ] {
        let error = with_members(members);
        assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
        assert_says(&error, &["header of `weights` is damaged", reason]);
    }
}

#[test]
fn a_header_that_is_no_json_object() {
    for header in ["", "{", "[]", "7", "{} {}"] {
        let error = refusal_of(file(header, &f32s(&[1.0])));
        assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
    }
}

#[test]
fn a_header_nested_without_end() {
    let error = refusal_of(file(&"{\"a\":".repeat(100_000), &[]));
    assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
    let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
    let error = refusal_of(file(&format!(r#"{{"__metadata__":{open}{close}}}"#), &[]));
    assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
}

#[test]
fn a_header_that_is_not_utf_8() {
    let mut bytes = vectors(&[("a", &[1.0])]);
    bytes[10] = 0xff;
    assert_says(&refusal_of(bytes), &["is damaged: invalid utf-8"]);
}
