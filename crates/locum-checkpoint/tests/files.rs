//! Reading a file whole: regular files only, and the common mistakes by name.

mod common;

use std::fs;

use common::{TestResult, assert_says, write};
use locum_checkpoint::{CheckpointError, read_file};

#[test]
fn the_bytes_of_a_regular_file_are_read() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("loads.csv");
    fs::write(&path, [0, 255, 10])?;
    assert_eq!(read_file(&path)?, [0, 255, 10]);
    Ok(())
}

#[test]
fn common_mistakes_are_named() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n";
    write(path, "pointer", pointer);
    write(path, "empty", "");
    for (name, expected) in [
        (
            "pointer",
            "pointer` is a Git LFS pointer, not the file itself: run `git lfs pull`",
        ),
        ("empty", "empty` is empty"),
        ("missing", "cannot open `"),
        (".", "` is not a regular file"),
    ] {
        let error = read_file(path.join(name)).expect_err(name);
        assert_says(&error, &[expected]);
    }
    Ok(())
}

#[cfg(unix)]
#[test]
fn links_are_followed_to_regular_files_alone() -> TestResult {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir()?;
    let path = directory.path();
    write(path, "file", "3,1");
    symlink("file", path.join("link"))?;
    symlink("/dev/zero", path.join("endless"))?;
    symlink("nowhere", path.join("broken"))?;
    assert_eq!(read_file(path.join("link"))?, b"3,1");

    let error = read_file(path.join("endless")).expect_err("a device");
    assert!(matches!(error, CheckpointError::NotAFile { .. }), "{error}");
    let error = read_file(path.join("broken")).expect_err("a broken link");
    assert!(
        matches!(error, CheckpointError::BrokenLink { .. }),
        "{error}"
    );
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_waiting_for_a_writer() -> TestResult {
    let directory = tempfile::tempdir()?;
    let pipe = directory.path().join("pipe");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&pipe)
            .status()?
            .success()
    );
    let error = read_file(&pipe).expect_err("a pipe");
    assert!(matches!(error, CheckpointError::NotAFile { .. }), "{error}");
    Ok(())
}
