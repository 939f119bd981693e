//! Which files of a directory are the checkpoint, and what is said where there is none.

mod common;

use std::fs;

use common::{TestResult, assert_says, index, refusal, refusal_of, vectors, write};
use locum_checkpoint::{Checkpoint, CheckpointError};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_single_file_wins_over_an_index() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    write(path, SINGLE, vectors(&[("a", &[1.0])]));
    write(path, "shard.safetensors", vectors(&[("a", &[2.0])]));
    write(path, INDEX, index(&[("a", "shard.safetensors")]));
    let checkpoint = Checkpoint::open(path)?;
    assert_eq!(checkpoint.tensor("a")?.to_f32(), Some(vec![1.0]));

    fs::remove_file(path.join(SINGLE))?;
    let checkpoint = Checkpoint::open(path)?;
    assert_eq!(checkpoint.tensor("a")?.to_f32(), Some(vec![2.0]));
    Ok(())
}

#[test]
fn files_that_the_index_does_not_name_are_not_read() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    write(path, "a.safetensors", vectors(&[("a", &[1.0])]));
    write(path, "consolidated.safetensors", "not safetensors");
    write(path, INDEX, index(&[("a", "a.safetensors")]));
    assert_eq!(Checkpoint::open(path)?.len(), 1);
    Ok(())
}

#[test]
fn no_such_directory_is_named() -> TestResult {
    let directory = tempfile::tempdir()?;
    let error = refusal(&directory.path().join("olmoe"));
    assert!(matches!(error, CheckpointError::NoSuchDirectory { .. }));
    assert_says(&error, &["olmoe` does not exist", SINGLE]);
    Ok(())
}

#[test]
fn a_file_is_not_a_directory() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(directory.path(), SINGLE, vectors(&[("a", &[1.0])]));
    let error = refusal(&directory.path().join(SINGLE));
    assert!(matches!(error, CheckpointError::NotADirectory { .. }));
    assert_says(&error, &["model.safetensors` is not a directory"]);
    Ok(())
}

#[test]
fn a_directory_without_weights_says_what_was_looked_for() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(directory.path(), "config.json", "{}");
    write(directory.path(), "training_args.bin", "");
    let error = refusal(directory.path());
    assert!(matches!(error, CheckpointError::NoWeights { .. }));
    let end = format!("` holds neither `{SINGLE}` nor `{INDEX}`");
    assert!(error.to_string().ends_with(&end), "{error}");
    Ok(())
}

#[test]
fn weights_of_another_format_are_named() -> TestResult {
    for (name, remedy) in [
        ("pytorch_model.bin", "safe_serialization=True"),
        ("consolidated.00.pth", "safe_serialization=True"),
        ("olmoe-q4.gguf", "GGUF files are not read"),
        ("model-00001-of-00002.safetensors", "shards need"),
    ] {
        let directory = tempfile::tempdir()?;
        write(directory.path(), name, "");
        assert_says(
            &refusal(directory.path()),
            &[&format!("it holds `{name}`"), remedy],
        );
    }
    Ok(())
}

#[test]
fn a_git_lfs_pointer_says_how_to_fetch_the_file() -> TestResult {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
    for name in [SINGLE, INDEX] {
        let directory = tempfile::tempdir()?;
        write(directory.path(), name, pointer);
        let error = refusal(directory.path());
        assert!(matches!(error, CheckpointError::LfsPointer { .. }));
        assert_says(
            &error,
            &[name, "is a Git LFS pointer", "run `git lfs pull`"],
        );
    }
    let error = refusal_of(pointer.into());
    assert!(matches!(error, CheckpointError::LfsPointer { .. }));
    Ok(())
}

#[test]
fn an_empty_file_is_named() -> TestResult {
    for name in [SINGLE, INDEX] {
        let directory = tempfile::tempdir()?;
        write(directory.path(), name, "");
        let error = refusal(directory.path());
        assert!(matches!(error, CheckpointError::EmptyFile { .. }));
        assert_says(&error, &[name, "is empty"]);
    }
    assert_says(&refusal_of(vec![]), &["`weights` is empty"]);
    Ok(())
}

#[test]
fn a_directory_in_place_of_a_file_is_refused() -> TestResult {
    for name in [SINGLE, INDEX] {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join(name))?;
        let error = refusal(directory.path());
        assert!(matches!(error, CheckpointError::NotAFile { .. }));
        assert_says(&error, &[name, "is not a regular file"]);
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_nothing_is_named_as_such() -> TestResult {
    let directory = tempfile::tempdir()?;
    std::os::unix::fs::symlink("../blobs/0123", directory.path().join(SINGLE))?;
    let error = refusal(directory.path());
    assert!(matches!(error, CheckpointError::BrokenLink { .. }));
    assert_says(&error, &[SINGLE, "is a symbolic link to a file"]);
    Ok(())
}

/// A pipe would wait forever for its other end, a device would never end.
#[cfg(unix)]
#[test]
fn a_device_is_refused_before_it_is_opened() -> TestResult {
    let directory = tempfile::tempdir()?;
    std::os::unix::fs::symlink("/dev/zero", directory.path().join(SINGLE))?;
    assert!(matches!(
        refusal(directory.path()),
        CheckpointError::NotAFile { .. }
    ));
    Ok(())
}
