//! Tensors of a valid checkpoint: values, order, and that nothing is copied.

mod common;

use std::fs::{self, File};
use std::io::Write;

use bytes::Bytes;
use common::{TestResult, f32s, file, index, vectors, write};
use locum_checkpoint::{Checkpoint, CheckpointError};
use locum_substitution::{Dtype, NamedTensor, SubstitutionError, TensorInfo, WeightStream};

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn tensors_of_one_file_come_with_type_shape_and_values() -> TestResult {
    let directory = tempfile::tempdir()?;
    let header = r#"{"__metadata__":{"format":"pt"},
        "gate":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},
        "up":{"dtype":"F16","shape":[1,1],"data_offsets":[12,14]},
        "down":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},
        "position":{"dtype":"I64","shape":[],"data_offsets":[14,22]}}"#;
    let mut data = f32s(&[0.5, -2.0]);
    data.extend([0x80, 0x3f, 0x00, 0xc0, 0x00, 0x3c]); // bf16 1 and -2, f16 1
    data.extend(7i64.to_le_bytes());
    write(directory.path(), "model.safetensors", file(header, &data));

    let checkpoint = Checkpoint::open(directory.path())?;
    let infos: Vec<TensorInfo> = checkpoint.infos().cloned().collect();
    assert_eq!(
        infos,
        [
            TensorInfo::new("down", Dtype::F32, [2, 1]),
            TensorInfo::new("gate", Dtype::Bf16, [2]),
            TensorInfo::new("up", Dtype::F16, [1, 1]),
            TensorInfo::new("position", Dtype::I64, []),
        ]
    );
    let tensors: Vec<NamedTensor> = checkpoint.tensors().collect::<Result<_, _>>()?;
    let described: Vec<TensorInfo> = tensors.iter().map(|t| t.info().clone()).collect();
    assert_eq!(described, infos);
    assert_eq!(tensors[0].to_f32(), Some(vec![0.5, -2.0]));
    assert_eq!(tensors[1].to_f32(), Some(vec![1.0, -2.0]));
    assert_eq!(tensors[2].to_f32(), Some(vec![1.0]));
    assert_eq!(tensors[3].bytes().as_ref(), 7i64.to_le_bytes());
    assert_eq!(checkpoint.total_bytes(), 22);
    assert_eq!((checkpoint.len(), checkpoint.is_empty()), (4, false));
    Ok(())
}

#[test]
fn bytes_are_read_from_the_file_that_they_are_mapped_from() -> TestResult {
    let directory = tempfile::tempdir()?;
    let (x, y) = ([1.0, 2.0, 3.0], [4.0, 5.0]);
    let path = directory.path().join("model.safetensors");
    fs::write(&path, vectors(&[("x", &x), ("y", &y)]))?;
    let checkpoint = Checkpoint::open(directory.path())?;
    let bytes = checkpoint.tensor("y")?.into_parts().1;
    let mut out = [0; 8];
    bytes.copy_to(&mut out)?;
    assert_eq!(out[..], f32s(&y)[..]);
    let mut last = [0; 4];
    bytes.slice(0..8).slice(4..100).copy_to(&mut last)?;
    assert_eq!(last, 5.0f32.to_le_bytes());
    assert!(bytes.copy_to(&mut last).is_err(), "of another length");
    bytes.slice(9..12).copy_to(&mut [])?;

    // It is the file that was opened, whatever has its name now; and one that loses its end is an error.
    let other = directory.path().join("other");
    fs::rename(&path, &other)?;
    fs::write(&path, "something else")?;
    bytes.copy_to(&mut out)?;
    assert_eq!(out[..], f32s(&y)[..]);
    File::options().write(true).open(&other)?.set_len(60)?;
    let error = bytes.copy_to(&mut out).err().ok_or("it is gone")?;
    assert!(error.to_string().contains("model.safetensors"), "{error}");
    Ok(())
}

#[test]
fn shards_come_in_the_order_of_the_index_and_know_their_file() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    write(path, "a.safetensors", vectors(&[("y", &[3.0])]));
    write(
        path,
        "b.safetensors",
        vectors(&[("x", &[1.0]), ("head", &[2.0])]),
    );
    write(
        path,
        INDEX,
        index(&[
            ("head", "b.safetensors"),
            ("y", "a.safetensors"),
            ("x", "b.safetensors"),
        ]),
    );

    let checkpoint = Checkpoint::open(path)?;
    assert_eq!(checkpoint.path(), path);
    assert!(
        checkpoint
            .files()
            .eq([path.join("b.safetensors"), path.join("a.safetensors")])
    );
    let names: Vec<&str> = checkpoint.infos().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["x", "head", "y"]);
    assert_eq!(
        checkpoint.file_of("y"),
        Some(path.join("a.safetensors").as_path())
    );
    assert_eq!(checkpoint.file_of("z"), None);
    assert_eq!(
        checkpoint.info("head"),
        Some(&TensorInfo::new("head", Dtype::F32, [1]))
    );
    assert_eq!(checkpoint.info("z"), None);
    Ok(())
}

#[test]
fn one_tensor_is_found_by_name() -> TestResult {
    let checkpoint = Checkpoint::from_bytes("w", vectors(&[("b", &[1.0]), ("a", &[2.0, 3.0])]))?;
    assert_eq!(checkpoint.tensor("a")?.to_f32(), Some(vec![2.0, 3.0]));
    let error = checkpoint.tensor("c").expect_err("there is no `c`");
    assert_eq!(error.to_string(), "no tensor `c` in `w`");
    Ok(())
}

#[test]
fn embedded_bytes_are_not_copied() -> TestResult {
    let bytes: &'static [u8] = vectors(&[("a", &[1.0]), ("b", &[2.0])]).leak();
    let checkpoint = Checkpoint::from_static(bytes)?;
    let data = &bytes[bytes.len() - 8..];
    assert_eq!(checkpoint.tensor("a")?.bytes().as_ptr(), data.as_ptr());
    assert_eq!(checkpoint.tensor("b")?.bytes().as_ptr(), data[4..].as_ptr());

    let owned = Bytes::from(bytes.to_vec());
    let checkpoint = Checkpoint::from_bytes("owned", owned.clone())?;
    assert_eq!(
        checkpoint.tensor("b")?.bytes().as_ptr(),
        owned[bytes.len() - 4..].as_ptr()
    );
    Ok(())
}

#[test]
fn mapped_tensors_share_one_map_which_outlives_the_checkpoint() -> TestResult {
    let directory = tempfile::tempdir()?;
    let content = vectors(&[("a", &[1.0, 2.0]), ("b", &[3.0])]);
    write(directory.path(), "model.safetensors", &content);

    let checkpoint = Checkpoint::open(directory.path())?;
    let (a, again) = (checkpoint.tensor("a")?, checkpoint.tensor("a")?);
    let b = checkpoint.clone().tensor("b")?;
    assert_eq!(a.bytes().as_ptr(), again.bytes().as_ptr());
    assert_eq!(a.bytes().as_ptr_range().end, b.bytes().as_ptr());
    drop((checkpoint, directory));
    assert_eq!(b.to_f32(), Some(vec![3.0]));
    Ok(())
}

/// 64 GiB that are a hole in the file: reading or copying it would take the machine down.
#[cfg(target_os = "linux")]
#[test]
fn opening_reads_no_tensor() -> TestResult {
    let directory = tempfile::tempdir()?;
    let length = 64usize << 30;
    let header =
        format!(r#"{{"t":{{"dtype":"U8","shape":[{length}],"data_offsets":[0,{length}]}}}}"#);
    let prefix = file(&header, &[]);
    let mut sparse = File::create(directory.path().join("model.safetensors"))?;
    sparse.write_all(&prefix)?;
    sparse.set_len((prefix.len() + length) as u64)?;

    let checkpoint = Checkpoint::open(directory.path())?;
    let tensor = checkpoint.tensor("t")?;
    assert_eq!(tensor.bytes().len(), length);
    assert_eq!(tensor.bytes()[length - 1], 0);
    assert_eq!(checkpoint.total_bytes(), length as u64);
    Ok(())
}

#[test]
fn weights_are_the_stream_that_models_load() -> TestResult {
    fn load(weights: &mut WeightStream<'_>) -> Result<Vec<String>, SubstitutionError> {
        weights
            .map(|tensor| Ok(tensor?.name().to_owned()))
            .collect()
    }
    let checkpoint = Checkpoint::from_bytes("w", vectors(&[("b", &[1.0]), ("a", &[2.0])]))?;
    assert_eq!(checkpoint.weights().len(), 2);
    assert_eq!(load(&mut checkpoint.weights())?, ["b", "a"]);

    let error = CheckpointError::NotAFile { path: "x".into() };
    let message = error.to_string();
    assert_eq!(SubstitutionError::from(error).to_string(), message);
    Ok(())
}

#[test]
fn misaligned_tensors_are_no_error() -> TestResult {
    let header = r#"{"mask":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},
        "w":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#;
    let mut data = vec![1];
    data.extend(f32s(&[4.5]));
    let checkpoint = Checkpoint::from_bytes("w", file(header, &data))?;
    assert_eq!(checkpoint.tensor("w")?.to_f32(), Some(vec![4.5]));
    Ok(())
}

#[test]
fn empty_tensors_keep_an_order_of_their_own() -> TestResult {
    let header = r#"{"d":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]},
        "c":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},
        "b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "a":{"dtype":"F32","shape":[2,0],"data_offsets":[1,1]}}"#;
    let checkpoint = Checkpoint::from_bytes("w", file(header, &[9]))?;
    let names: Vec<&str> = checkpoint.infos().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["c", "d", "b", "a"]);
    assert_eq!(checkpoint.tensor("d")?.to_f32(), Some(vec![]));
    Ok(())
}

#[test]
fn a_file_without_tensors_is_an_empty_checkpoint() -> TestResult {
    let checkpoint = Checkpoint::from_bytes("w", file("{}", &[]))?;
    assert!(checkpoint.is_empty());
    assert_eq!(checkpoint.tensors().count(), 0);
    Ok(())
}

#[cfg(unix)]
#[test]
fn shards_may_be_links_into_a_cache_elsewhere() -> TestResult {
    let cache = tempfile::tempdir()?;
    let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/1"));
    fs::create_dir_all(&blobs)?;
    fs::create_dir_all(&snapshot)?;
    write(&blobs, "0123", vectors(&[("a", &[1.0])]));
    write(&blobs, "4567", index(&[("a", "model-1.safetensors")]));
    std::os::unix::fs::symlink("../../blobs/0123", snapshot.join("model-1.safetensors"))?;
    std::os::unix::fs::symlink("../../blobs/4567", snapshot.join(INDEX))?;

    let checkpoint = Checkpoint::open(&snapshot)?;
    assert_eq!(checkpoint.tensor("a")?.to_f32(), Some(vec![1.0]));
    Ok(())
}
