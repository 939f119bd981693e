//! New checkpoints: what is written is what the reference reader reads.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use locum_checkpoint::{Checkpoint, CheckpointError, NewCheckpoint, NewTensor, StoredBytes};
use locum_substitution::{Dtype, TensorInfo};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype as Stored, TensorView};

/// Bytes that tell where they are from.
fn bytes(from: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|place| from.wrapping_add(place as u8))
        .collect()
}

fn new(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> NewTensor {
    NewTensor::new(TensorInfo::new(name, dtype, shape), vec![bytes.into()]).unwrap()
}

fn write(checkpoint: &NewCheckpoint, directory: &Path) -> u64 {
    let mut written = 0;
    let shown = Path::new("shown");
    checkpoint
        .write(directory, shown, &mut |bytes| written += bytes)
        .unwrap();
    written
}

/// A source file with an odd number of one-byte elements before wide ones, as other writers may have.
fn source(directory: &Path) -> Checkpoint {
    let tensors = [
        ("wide", Stored::F32, vec![3], bytes(1, 12)),
        ("half", Stored::BF16, vec![4, 2], bytes(50, 16)),
        ("odd", Stored::U8, vec![5], bytes(90, 5)),
    ];
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.clone(), bytes).unwrap(),
        )
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(directory.join("model.safetensors"), file).unwrap();
    Checkpoint::open(directory).unwrap()
}

#[test]
fn tensors_come_from_files_and_from_memory_whole_or_by_rows() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = source(from.path());
    let half = source.stored("half").unwrap();
    let rows = vec![half.slice(0..4), half.slice(4..8), half.slice(12..16)];
    let info = |name: &str| source.info(name).unwrap().clone();
    let checkpoint = NewCheckpoint::new(
        vec![
            NewTensor::new(info("odd"), vec![source.stored("odd").unwrap()]).unwrap(),
            NewTensor::new(TensorInfo::new("rows", Dtype::Bf16, [3, 2]), rows).unwrap(),
            new("empty", Dtype::F16, &[0, 7], Vec::new()),
            new("scalar", Dtype::I64, &[], bytes(200, 8)),
            NewTensor::new(info("wide"), vec![source.stored("wide").unwrap()]).unwrap(),
        ],
        u64::MAX,
    )
    .unwrap();
    assert_eq!(write(&checkpoint, to.path()), 5 + 12 + 8 + 12);
    let written = fs::read(to.path().join("model.safetensors")).unwrap();
    assert_eq!(written.len() as u64, checkpoint.file_bytes());

    // Read by the reference implementation.
    let file = SafeTensors::deserialize(&written).unwrap();
    let found = |name: &str| {
        let view = file.tensor(name).unwrap();
        (view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    assert_eq!(found("odd"), (Stored::U8, vec![5], bytes(90, 5)));
    let rows = [bytes(50, 8), bytes(62, 4)].concat();
    assert_eq!(found("rows"), (Stored::BF16, vec![3, 2], rows));
    assert_eq!(found("empty"), (Stored::F16, vec![0, 7], Vec::new()));
    assert_eq!(found("scalar"), (Stored::I64, Vec::new(), bytes(200, 8)));
    assert_eq!(found("wide"), (Stored::F32, vec![3], bytes(1, 12)));
    let (header, metadata) = SafeTensors::read_metadata(&written).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    assert!((header + 8).is_multiple_of(8));
    for (name, info) in metadata.tensors() {
        let size = (info.dtype.bitsize() / 8).max(1);
        assert!(
            info.data_offsets.0.is_multiple_of(size),
            "{name} is not aligned"
        );
    }
}

#[test]
fn stored_bytes_are_read_piece_by_piece() {
    let directory = tempfile::tempdir().unwrap();
    // More than a piece, and no multiple of one.
    let all: Vec<u8> = (0..3_000_001u32).map(|place| (place % 251) as u8).collect();
    let view = TensorView::new(Stored::U8, vec![all.len()], &all).unwrap();
    let file = safetensors::serialize([("all", view)], None).unwrap();
    fs::write(directory.path().join("model.safetensors"), &file).unwrap();
    let on_disk = Checkpoint::open(directory.path())
        .unwrap()
        .stored("all")
        .unwrap();
    let in_memory = Checkpoint::from_bytes("bytes", file)
        .unwrap()
        .stored("all")
        .unwrap();
    for stored in [on_disk, in_memory, StoredBytes::from(all.clone())] {
        assert_eq!(stored.len(), all.len() as u64);
        let mut read = Vec::new();
        stored.read(|piece| read.extend_from_slice(piece)).unwrap();
        assert!(read == all);
        let mut part = Vec::new();
        stored
            .slice(7..2_000_000)
            .slice(1..10)
            .read(|p| part.extend_from_slice(p))
            .unwrap();
        assert_eq!(part, all[8..17]);
        assert!(stored.slice(5..5).is_empty() && stored.slice(u64::MAX - 1..u64::MAX).is_empty());
    }
}

#[test]
fn source_that_has_become_shorter_is_an_error() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = source(from.path());
    let info = source.info("half").unwrap().clone();
    let tensor = NewTensor::new(info, vec![source.stored("half").unwrap()]).unwrap();
    let checkpoint = NewCheckpoint::new(vec![tensor], u64::MAX).unwrap();
    drop(source);
    let path = from.path().join("model.safetensors");
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(fs::metadata(&path).unwrap().len() - 10)
        .unwrap();
    let result = checkpoint.write(to.path(), Path::new("shown"), &mut |_| {});
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("cannot read") && error.contains("model.safetensors"),
        "{error}"
    );
}

#[test]
fn wrong_tensors_are_refused_before_anything_is_written() {
    let short = NewTensor::new(
        TensorInfo::new("t", Dtype::F32, [2, 2]),
        vec![vec![0; 15].into()],
    );
    assert_eq!(
        short.unwrap_err().to_string(),
        "tensor `t` is to be written as f32 [2, 2], which takes 16 bytes, and has 15"
    );
    let unknown = TensorInfo::new("t", Dtype::Other("F7".into()), [2]);
    let unknown = NewTensor::new(unknown, vec![vec![0; 2].into()]).unwrap_err();
    assert!(unknown.to_string().contains("F7"), "{unknown}");
    let huge = TensorInfo::new("t", Dtype::F32, [usize::MAX, 2]);
    assert!(NewTensor::new(huge, Vec::new()).is_err());
    let twice = [0, 1].map(|from| new("t", Dtype::F16, &[1], bytes(from, 2)));
    let error = NewCheckpoint::new(twice.to_vec(), u64::MAX).unwrap_err();
    assert!(matches!(error, CheckpointError::DuplicateTensor { tensor, .. } if tensor == "t"));
}

#[test]
fn types_that_models_do_not_have_are_copied_as_well() {
    let to = tempfile::tempdir().unwrap();
    let tensors = ["F8_E4M3", "U8", "F64", "BOOL"].map(|dtype| {
        let size = if dtype == "F64" { 8 } else { 1 };
        new(dtype, Dtype::Other(dtype.into()), &[3], bytes(3, 3 * size))
    });
    write(
        &NewCheckpoint::new(tensors.to_vec(), u64::MAX).unwrap(),
        to.path(),
    );
    let written = fs::read(to.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&written).unwrap();
    for (name, dtype) in [
        ("F8_E4M3", Stored::F8_E4M3),
        ("U8", Stored::U8),
        ("F64", Stored::F64),
        ("BOOL", Stored::BOOL),
    ] {
        assert_eq!(file.tensor(name).unwrap().dtype(), dtype);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn file_that_cannot_be_created_is_named_as_the_user_knows_it() {
    let to = tempfile::tempdir().unwrap();
    let path = to.path().join("model.safetensors");
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let checkpoint = NewCheckpoint::new(vec![new("t", Dtype::F16, &[1], bytes(0, 2))], 10).unwrap();
    let error = checkpoint
        .write(to.path(), Path::new("out"), &mut |_| {})
        .unwrap_err();
    // It is not written through.
    assert!(
        error
            .to_string()
            .starts_with("cannot create `out/model.safetensors`: "),
        "{error}"
    );
}

#[test]
fn large_files_keep_tensors_where_they_were_within_their_pages() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (small, large) = (bytes(1, 4096), bytes(2, 20 << 20));
    let views = [("a", &small), ("b", &large)].map(|(name, bytes)| {
        (
            name,
            TensorView::new(Stored::U8, vec![bytes.len()], bytes).unwrap(),
        )
    });
    let file = safetensors::serialize(views, None).unwrap();
    fs::write(from.path().join("model.safetensors"), &file).unwrap();
    let source = Checkpoint::open(from.path()).unwrap();
    let copied = |name: &str| {
        let info = source.info(name).unwrap().clone();
        NewTensor::new(info, vec![source.stored(name).unwrap()]).unwrap()
    };
    // Six bytes before it would move all that follows.
    let other = new("c", Dtype::Other("U8".into()), &[6], bytes(9, 6));
    let tensors = vec![other, copied("b"), copied("a")];
    write(&NewCheckpoint::new(tensors, u64::MAX).unwrap(), to.path());
    let written = fs::read(to.path().join("model.safetensors")).unwrap();
    let place = |file: &[u8], name: &str| {
        let view = SafeTensors::deserialize(file)
            .unwrap()
            .tensor(name)
            .unwrap();
        view.data().as_ptr() as usize - file.as_ptr() as usize
    };
    // The header is a multiple of eight, so six bytes cannot be made up for; without them they are.
    assert_eq!((place(&written, "b") - 6) % 8, 0);
    fs::remove_file(to.path().join("model.safetensors")).unwrap();
    let tensors = vec![copied("b"), copied("a")];
    write(&NewCheckpoint::new(tensors, u64::MAX).unwrap(), to.path());
    let written = fs::read(to.path().join("model.safetensors")).unwrap();
    assert_eq!(place(&written, "b") % 4096, place(&file, "b") % 4096);
    let view = SafeTensors::deserialize(&written).unwrap();
    assert!(view.tensor("b").unwrap().data() == large && view.tensor("a").unwrap().data() == small);
}
