//! Directories that appear whole or not at all.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use locum_checkpoint::{CheckpointError, StagedDirectory};

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A model's directory with one file beside its configuration and weights.
fn model(directory: &Path, content: &str) -> PathBuf {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("config.json"), r#"{"model_type": "olmoe"}"#).unwrap();
    fs::write(directory.join("model.safetensors"), "").unwrap();
    fs::write(directory.join("content"), content).unwrap();
    directory.to_path_buf()
}

fn refused(target: &Path, replace: bool) -> String {
    StagedDirectory::create(target, replace)
        .unwrap_err()
        .to_string()
}

#[test]
fn directory_appears_when_it_is_published() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let staged = StagedDirectory::create(&out, false).unwrap();
    fs::write(staged.path().join("content"), "new").unwrap();
    assert!(!out.exists());
    let hidden = names(parent.path());
    assert!(hidden[0].starts_with(".out.locum-partial-"), "{hidden:?}");
    staged.publish().unwrap();
    assert_eq!(names(parent.path()), ["out"]);
    assert_eq!(fs::read_to_string(out.join("content")).unwrap(), "new");
    // As any other directory, and not private as temporary ones are.
    let other = parent.path().join("other");
    fs::create_dir(&other).unwrap();
    let permissions = |path: &Path| fs::metadata(path).unwrap().permissions();
    assert_eq!(permissions(&out), permissions(&other));
}

#[test]
fn what_is_dropped_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let staged = StagedDirectory::create(parent.path().join("out"), false).unwrap();
    fs::write(staged.path().join("content"), "half").unwrap();
    drop(staged);
    assert_eq!(names(parent.path()), Vec::<String>::new());
}

#[test]
fn directory_that_exists_is_replaced_only_where_that_is_said() {
    let parent = tempfile::tempdir().unwrap();
    let out = model(&parent.path().join("out"), "old");
    let error = StagedDirectory::create(&out, false).unwrap_err();
    assert!(matches!(error, CheckpointError::Exists { path } if path == out));
    assert_eq!(names(parent.path()), ["out"]);
    let staged = StagedDirectory::create(&out, true).unwrap();
    fs::write(staged.path().join("content"), "new").unwrap();
    assert_eq!(fs::read_to_string(out.join("content")).unwrap(), "old");
    staged.publish().unwrap();
    // Nothing of the old one is left, neither in it nor beside it.
    assert_eq!(names(parent.path()), ["out"]);
    assert_eq!(names(&out), ["content"]);
    assert_eq!(fs::read_to_string(out.join("content")).unwrap(), "new");
}

#[test]
fn what_is_no_model_is_not_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("home");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("thesis.tex"), "").unwrap();
    assert!(refused(&out, true).contains("no `config.json`"));
    // Of a program, and of a model without weights: neither is what would be made again.
    let config = out.join("config.json");
    for content in [r#"{"theme": "dark"}"#, "[1]", "no JSON"] {
        fs::write(&config, content).unwrap();
        assert!(refused(&out, true).contains("neither `model_type` nor `architectures`"));
    }
    fs::write(&config, r#"{"architectures": ["OlmoeForCausalLM"]}"#).unwrap();
    assert!(refused(&out, true).contains("no `.safetensors` file"));
    assert_eq!(names(&out), ["config.json", "thesis.tex"]);
    fs::create_dir(out.join(".git")).unwrap();
    assert!(refused(&out, true).contains("it holds a `.git`"));
    fs::remove_dir(out.join(".git")).unwrap();
    fs::remove_file(config).unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refused(&file, true).contains("not a directory"));
    fs::remove_file(out.join("thesis.tex")).unwrap();
    // An empty directory loses nothing.
    StagedDirectory::create(&out, true)
        .unwrap()
        .publish()
        .unwrap();
}

#[test]
fn name_that_is_taken_meanwhile_is_not_overwritten() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let staged = StagedDirectory::create(&out, false).unwrap();
    model(&out, "somebody else's");
    assert!(staged.publish().is_err());
    assert_eq!(
        fs::read_to_string(out.join("content")).unwrap(),
        "somebody else's"
    );
    assert_eq!(names(parent.path()), ["out"]);
}

#[test]
fn what_came_meanwhile_is_replaced_only_where_it_is_a_model() {
    let parent = tempfile::tempdir().unwrap();
    let out = model(&parent.path().join("out"), "old");
    let staged = StagedDirectory::create(&out, true).unwrap();
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("thesis.tex"), "").unwrap();
    let error = staged.publish().unwrap_err().to_string();
    assert!(error.contains("no `config.json`"), "{error}");
    assert_eq!(names(&out), ["thesis.tex"]);
    assert_eq!(names(parent.path()), ["out"]);
}

/// Each takes what it finds unlocked for a leftover, and none may lose what it has begun.
#[test]
fn directories_begun_at_once_do_not_remove_each_other() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let staged = StagedDirectory::create(&out, false).unwrap();
                    fs::write(staged.path().join("content"), "new").unwrap();
                }
            });
        }
    });
    assert_eq!(names(parent.path()), Vec::<String>::new());
}

#[test]
fn places_where_nothing_can_be_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let missing = refused(&parent.path().join("no/such/out"), false);
    assert!(
        missing.contains("that should hold it does not exist"),
        "{missing}"
    );
    let file = parent.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refused(&file.join("out"), false).starts_with("cannot create"));
    assert!(refused(Path::new("/"), true).contains("is not replaced"));
    assert!(refused(Path::new(""), false).contains("no name"));
}

#[cfg(unix)]
#[test]
fn link_is_followed_and_what_it_leads_to_is_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let target = model(&elsewhere.path().join("target"), "old");
    let link = parent.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let staged = StagedDirectory::create(&link, true).unwrap();
    fs::write(staged.path().join("content"), "new").unwrap();
    staged.publish().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(target.join("content")).unwrap(), "new");
    fs::remove_dir_all(&target).unwrap();
    assert!(refused(&link, true).contains("link"));
}

#[cfg(unix)]
#[test]
fn leftovers_of_a_killed_process_go_and_those_in_use_stay() {
    let parent = tempfile::tempdir().unwrap();
    let out = parent.path().join("out");
    let leftover = parent.path().join(".out.locum-partial-abc123");
    let of_another = parent.path().join(".out2.locum-partial-abc123");
    for directory in [&leftover, &of_another] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("model.safetensors"), "half").unwrap();
    }
    let first = StagedDirectory::create(&out, false).unwrap();
    assert!(!leftover.exists() && of_another.exists());
    let second = StagedDirectory::create(&out, false).unwrap();
    assert!(first.path().exists() && second.path() != first.path());
    first.publish().unwrap();
    drop(second);
    assert_eq!(names(parent.path()), [".out2.locum-partial-abc123", "out"]);
}
