//! Indexes that are damaged, or that disagree with their shards.

mod common;

use common::{TestResult, assert_says, index, refusal, vectors, write};
use locum_checkpoint::{CheckpointError, read_json};

const INDEX: &str = "model.safetensors.index.json";

/// Two shards, `one` with `a` and `b`, `two` with `c`, and this index.
fn with_index(content: &str) -> CheckpointError {
    let directory = tempfile::tempdir().expect("there is a place for temporary files");
    let path = directory.path();
    write(
        path,
        "one.safetensors",
        vectors(&[("a", &[1.0]), ("b", &[2.0])]),
    );
    write(path, "two.safetensors", vectors(&[("c", &[3.0])]));
    write(path, INDEX, content);
    refusal(path)
}

#[test]
fn a_missing_shard_is_named_before_any_is_read() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(directory.path(), "one.safetensors", "not safetensors");
    let weight_map = [
        ("a", "one.safetensors"),
        ("c", "two.safetensors"),
        ("d", "two.safetensors"),
        ("e", "two.safetensors"),
    ];
    write(directory.path(), INDEX, index(&weight_map));
    let error = refusal(directory.path());
    assert!(matches!(
        &error,
        CheckpointError::MissingShard { tensor, tensors: 3, .. } if tensor == "c"
    ));
    assert_says(
        &error,
        &[
            "two.safetensors` is missing",
            INDEX,
            "puts tensor `c` and 2 more there",
        ],
    );
    Ok(())
}

#[test]
fn a_tensor_that_its_shard_does_not_hold() {
    let error = with_index(&index(&[
        ("a", "one.safetensors"),
        ("b", "one.safetensors"),
        ("c", "two.safetensors"),
        ("d", "two.safetensors"),
    ]));
    assert!(matches!(
        error,
        CheckpointError::NotInShard { found: None, .. }
    ));
    assert_says(
        &error,
        &[
            INDEX,
            "puts tensor `d` into",
            "two.safetensors`, which does not hold it:",
        ],
    );
}

#[test]
fn a_tensor_that_another_shard_holds() {
    let error = with_index(&index(&[
        ("a", "one.safetensors"),
        ("b", "two.safetensors"),
        ("c", "two.safetensors"),
    ]));
    assert!(matches!(
        error,
        CheckpointError::NotInShard { found: Some(_), .. }
    ));
    assert_says(
        &error,
        &[
            "puts tensor `b` into",
            "two.safetensors`, which",
            "one.safetensors` does)",
        ],
    );
}

#[test]
fn a_tensor_that_the_index_does_not_name() {
    let error = with_index(&index(&[
        ("a", "one.safetensors"),
        ("c", "two.safetensors"),
    ]));
    assert!(matches!(error, CheckpointError::NotInIndex { .. }));
    assert_says(
        &error,
        &[
            "one.safetensors` holds tensor `b`",
            INDEX,
            "` does not name",
        ],
    );
}

#[test]
fn a_name_in_two_shards() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    write(path, "one.safetensors", vectors(&[("a", &[1.0])]));
    write(
        path,
        "two.safetensors",
        vectors(&[("b", &[2.0]), ("a", &[1.0])]),
    );
    write(
        path,
        INDEX,
        index(&[("a", "one.safetensors"), ("b", "two.safetensors")]),
    );
    let error = refusal(path);
    assert!(matches!(error, CheckpointError::DuplicateTensor { .. }));
    assert_says(
        &error,
        &[
            "tensor `a` is named twice",
            "one.safetensors` and in",
            "two.safetensors`",
        ],
    );
    Ok(())
}

#[test]
fn a_name_twice_in_the_index() {
    let error = with_index(&index(&[
        ("a", "one.safetensors"),
        ("a", "two.safetensors"),
    ]));
    assert!(matches!(error, CheckpointError::DuplicateTensor { .. }));
    assert_says(
        &error,
        &["tensor `a` is named twice, both times in `", INDEX],
    );
}

#[test]
fn shards_never_leave_the_directory() {
    for shard in [
        "../one.safetensors",
        "/one.safetensors",
        "sub/one.safetensors",
        "./one.safetensors",
        "one.safetensors/",
        "..\\\\one.safetensors",
        "..",
        ".",
        "",
        "one\\u0000.safetensors",
    ] {
        let error = with_index(&index(&[("a", shard)]));
        assert!(
            matches!(error, CheckpointError::ShardName { .. }),
            "{shard}: {error}"
        );
        assert_says(&error, &[INDEX, "tensor `a`", "a plain file name"]);
    }
}

#[test]
fn an_index_that_is_none() {
    for (content, reason) in [
        ("{", "EOF while parsing"),
        ("[]", "invalid type: sequence, expected an object"),
        ("{}", "it has no `weight_map`"),
        (r#"{"metadata":{"total_size":3}}"#, "it has no `weight_map`"),
        (
            r#"{"weight_map":["a"]}"#,
            "`weight_map`: invalid type: sequence, expected an object",
        ),
        (
            r#"{"weight_map":{"a":7}}"#,
            "`weight_map`: `a`: invalid type: integer `7`, expected a string",
        ),
        (
            r#"{"weight_map":{"a":"one.safetensors"},"weight_map":{}}"#,
            "it has more than one `weight_map`",
        ),
        ("\u{fffd}", "expected value"),
    ] {
        let error = with_index(content);
        assert!(matches!(error, CheckpointError::Index { .. }), "{error}");
        assert_says(&error, &[INDEX, "is damaged", reason]);
    }
}

#[test]
fn an_index_without_tensors_is_an_empty_checkpoint() -> TestResult {
    let directory = tempfile::tempdir()?;
    write(directory.path(), INDEX, index(&[]));
    let checkpoint = locum_checkpoint::Checkpoint::open(directory.path())?;
    assert_eq!((checkpoint.len(), checkpoint.files().len()), (0, 0));
    Ok(())
}

#[test]
fn json_files_are_read_with_or_without_a_byte_order_mark() -> TestResult {
    let directory = tempfile::tempdir()?;
    for content in [r#"{"hidden_size":8}"#, "\u{feff}{\"hidden_size\":8}"] {
        write(directory.path(), "config.json", content);
        let config = read_json(directory.path().join("config.json"))?;
        assert_eq!(config["hidden_size"], 8);
    }
    Ok(())
}

#[test]
fn json_files_that_cannot_be_read_are_named() -> TestResult {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("config.json");
    let error = read_json(&path).expect_err("there is no such file");
    assert!(matches!(error, CheckpointError::Io { .. }));
    assert_says(&error, &["cannot open `", "config.json`"]);

    write(
        directory.path(),
        "config.json",
        "{\n  \"hidden_size\": 8,,\n}",
    );
    let error = read_json(&path).expect_err("this is not JSON");
    assert!(matches!(error, CheckpointError::Json { .. }));
    assert_says(&error, &["config.json` is not valid JSON", "line 2"]);
    Ok(())
}
