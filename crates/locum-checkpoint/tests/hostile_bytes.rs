//! Whatever bytes a file holds, opening it ends in a checkpoint or in an error that names the file.

mod common;

use std::fs;

use common::{file, vectors};
use locum_checkpoint::{Checkpoint, CheckpointError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors::SafeTensors;

/// Valid files of up to five tensors.
fn valid_file() -> impl Strategy<Value = Vec<u8>> {
    let tensor = (
        select(vec![
            ("F32", 4),
            ("F16", 2),
            ("BF16", 2),
            ("I64", 8),
            ("BOOL", 1),
        ]),
        vec(0usize..4, 0..3),
    );
    vec(tensor, 0..5).prop_map(|tensors| {
        let (mut members, mut end) = (Vec::new(), 0);
        for (place, ((dtype, size), shape)) in tensors.iter().enumerate() {
            let begin = end;
            end += size * shape.iter().product::<usize>();
            members.push(format!(
                r#""t{place}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            ));
        }
        let data: Vec<u8> = (0..end).map(|byte| byte as u8).collect();
        file(&format!("{{{}}}", members.join(",")), &data)
    })
}

/// Opens bytes, reads every tensor, and compares with what the `safetensors` crate makes of them.
fn check(bytes: Vec<u8>) -> Result<Option<CheckpointError>, TestCaseError> {
    match Checkpoint::from_bytes("weights", bytes.clone()) {
        Ok(checkpoint) => {
            let expected =
                SafeTensors::deserialize(&bytes).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(checkpoint.len(), expected.len());
            for tensor in checkpoint.tensors() {
                let tensor = tensor.map_err(|e| TestCaseError::fail(e.to_string()))?;
                let expected = expected
                    .tensor(tensor.name())
                    .map_err(|e| TestCaseError::fail(e.to_string()))?;
                prop_assert_eq!(tensor.bytes().as_ref(), expected.data());
                prop_assert_eq!(tensor.shape(), expected.shape());
                prop_assert_eq!(
                    tensor.dtype().to_string().to_uppercase(),
                    expected.dtype().to_string()
                );
            }
            Ok(None)
        }
        Err(error) => {
            prop_assert!(error.to_string().contains("`weights`"), "{}", error);
            // The crate keeps the last of two equal names, and may overflow on lengths.
            if !matches!(
                error,
                CheckpointError::DuplicateTensor { .. } | CheckpointError::TensorBeyondFile { .. }
            ) {
                prop_assert!(SafeTensors::deserialize(&bytes).is_err(), "{}", error);
            }
            Ok(Some(error))
        }
    }
}

proptest! {
    #[test]
    fn valid_files_open(bytes in valid_file()) {
        prop_assert!(check(bytes)?.is_none());
    }

    #[test]
    fn files_cut_short_are_refused(bytes in valid_file(), end in any::<Index>()) {
        let end = end.index(bytes.len());
        prop_assert!(check(bytes[..end].to_vec())?.is_some());
    }

    #[test]
    fn changed_bytes_never_panic(
        mut bytes in valid_file(),
        changes in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        check(bytes)?;
    }

    #[test]
    fn inserted_and_removed_bytes_never_panic(
        mut bytes in valid_file(),
        at in any::<Index>(),
        removed in 0usize..8,
        inserted in vec(any::<u8>(), 0..8),
    ) {
        let at = at.index(bytes.len());
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, inserted);
        check(bytes)?;
    }

    #[test]
    fn arbitrary_numbers_in_a_header_never_panic(
        tensors in vec((vec(number(), 0..4), number(), number(), dtype()), 1..10),
        data in 0usize..40,
    ) {
        let members: Vec<String> = tensors
            .iter()
            .enumerate()
            .map(|(place, (shape, begin, end, dtype))| format!(
                r#""t{place}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            ))
            .collect();
        check(file(&format!("{{{}}}", members.join(",")), &vec![0; data]))?;
    }

    /// Lengths whose sum is more than 64 bits can count.
    #[test]
    fn chained_lengths_that_overflow_are_refused(count in 8u64..20, extra in 0u64..1000) {
        let length = u64::MAX / 8 - extra;
        let mut members = Vec::new();
        for place in 0..count {
            let (begin, end) = (place.saturating_mul(length), (place + 1).saturating_mul(length));
            members.push(format!(
                r#""t{place}":{{"dtype":"U8","shape":[{length}],"data_offsets":[{begin},{end}]}}"#
            ));
        }
        let error = check(file(&format!("{{{}}}", members.join(",")), &[0; 16]))?;
        let refused = matches!(error, Some(CheckpointError::TensorBeyondFile { .. }));
        prop_assert!(refused, "{:?}", error);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        check(bytes)?;
    }

    #[test]
    fn arbitrary_headers_never_panic(header in ".{0,80}", data in vec(any::<u8>(), 0..20)) {
        check(file(&header, &data))?;
    }

    #[test]
    fn a_changed_index_never_panics(changes in vec((any::<Index>(), any::<u8>()), 1..4)) {
        let directory = tempfile::tempdir()?;
        let path = directory.path();
        fs::write(path.join("a.safetensors"), vectors(&[("a", &[1.0])]))?;
        fs::write(path.join("b.safetensors"), vectors(&[("b", &[2.0]), ("c", &[3.0])]))?;
        let index = common::index(&[("a", "a.safetensors"), ("b", "b.safetensors"), ("c", "b.safetensors")]);
        let mut index = index.into_bytes();
        for (place, byte) in changes {
            let place = place.index(index.len());
            index[place] = byte;
        }
        fs::write(path.join("model.safetensors.index.json"), &index)?;
        match Checkpoint::open(path) {
            Ok(checkpoint) => prop_assert_eq!(checkpoint.len(), 3),
            Err(error) => prop_assert!(
                error.to_string().contains(&*path.to_string_lossy()), "{}", error
            ),
        }
    }
}

/// Numbers at which arithmetic goes wrong, and small ones.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0u64..20,
        1 => select(vec![u64::MAX, u64::MAX - 8, u64::MAX / 2 + 1, u64::MAX / 8, 1 << 32, 1 << 61]),
        1 => any::<u64>(),
    ]
}

fn dtype() -> impl Strategy<Value = &'static str> {
    select(vec!["F32", "BF16", "U8", "F4", "F6_E2M3", "F64", "C64"])
}
