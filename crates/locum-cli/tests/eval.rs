//! `locum eval`, from outside: what it prints, and what it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use common::{TestModel, fixture, locum, path, refused, run, stdout, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a short text.
fn folder(contents: impl AsRef<[u8]>) -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("text.txt");
    std::fs::write(&file, contents).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

fn held_out() -> String {
    let text = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    text.chars().take(4000).collect()
}

fn model(name: &str) -> String {
    fixture(name).to_str().unwrap().to_owned()
}

/// A fixture without experts that are constants, and its tokenizer.
fn tiny_olmoe() -> String {
    model("tiny-olmoe")
}

#[test]
fn json_has_perplexities_differences_and_what_was_met() {
    let (_folder, text) = folder(held_out());
    let (pruned, unpruned) = (model("tiny-olmoe-mone50"), tiny_olmoe());
    let arguments = [
        "eval",
        &pruned,
        "--text",
        &text,
        "--length",
        "64",
        "--against",
        &unpruned,
        "--json",
    ];
    let report: Value = serde_json::from_str(&stdout(&arguments)).unwrap();
    let alone: Value = serde_json::from_str(&stdout(&[
        "eval", &unpruned, "--text", &text, "--length", "64", "--json",
    ]))
    .unwrap();
    let number = |value: &Value| value.as_f64().unwrap();

    assert_eq!(report["model"], json!(pruned));
    assert_eq!(report["length"], json!(64));
    let windows = report["windows"].as_u64().unwrap();
    assert!(windows >= 10);
    assert_eq!(report["predictions"], json!(64 * windows));
    let (here, there) = (
        number(&report["perplexity"]),
        number(&report["against"]["perplexity"]),
    );
    assert!((number(&report["negative_log_likelihood"]).exp() - here).abs() < 1e-9 * here);
    assert!(here > there, "{here} is not above {there}");
    // Alone or beside another, a model predicts the same.
    assert_eq!(alone["perplexity"], report["against"]["perplexity"]);
    assert!(alone.get("against").is_none());

    let against = &report["against"];
    let agreement = number(&against["token_agreement"]);
    assert!((0.5..1.0).contains(&agreement), "{agreement}");
    assert!(number(&against["kl_divergence"]) > 0.05);
    // 4.75 MB and 7.89 MB of tensors, of which nothing is converted in memory.
    for (report, bytes) in [(&report, 4_747_520), (against, 7_885_056)] {
        assert_eq!(report["weights_bytes"], json!(bytes));
        assert_eq!(report["tensors_bytes"], json!(bytes));
        assert!(number(&report["tokens_per_second"]) > 0.0);
    }
    let layers = report["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 4);
    assert_eq!(
        layers[0]["substituted"],
        json!([0, 2, 5, 9, 10, 12, 14, 15])
    );
    for (layer, other) in layers.iter().zip(against["layers"].as_array().unwrap()) {
        assert_eq!(layer["tokens"], report["predictions"]);
        // Four experts of each token.
        assert_eq!(layer["routes"], json!(4 * 64 * windows));
        let shares = ["token", "route", "weight"];
        for share in shares.map(|share| format!("substituted_{share}_share")) {
            assert!(
                (0.01..0.99).contains(&number(&layer[&share])),
                "{share}: {layer}"
            );
            assert_eq!(other[&share], json!(0.0));
        }
        assert!(
            number(&layer["substituted_token_share"]) >= number(&layer["substituted_route_share"])
        );
    }
}

#[test]
fn result_does_not_depend_on_threads() {
    let (_folder, text) = folder(held_out());
    let with = |threads: &str| {
        let arguments = ["eval", "--text", &text, "--length", "100", "--json"];
        let printed = stdout(&[&arguments[..], &["--threads", threads]].concat());
        let mut report: Value = serde_json::from_str(&printed).unwrap();
        report["tokens_per_second"] = Value::Null;
        report
    };
    assert_eq!(with("1"), with("3"));
}

#[test]
fn table_says_what_it_is_of() {
    let (_folder, text) = folder(held_out());
    let unpruned = tiny_olmoe();
    let arguments = [
        "eval",
        "--text",
        &text,
        "--length",
        "64",
        "--against",
        &unpruned,
    ];
    let printed = stdout(&arguments);
    for expected in [
        "windows of 64 predictions",
        "\nperplexity ",
        "\nnats per token ",
        "\ntokens/s ",
        "\ntoken agreement  ",
        "nats per token, KL(p_other‖p_model)",
        "\nlayer  experts  substituted  routes %  tokens %  weight %\n",
    ] {
        assert!(
            printed.contains(expected),
            "{expected:?} is not in:\n{printed}"
        );
    }
    assert!(printed.lines().any(|line| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        cells == ["weights", "in", "memory", "6.32", "MB", "7.89", "MB"]
    }));
    let alone = stdout(&["eval", &unpruned, "--text", &text, "--length", "64"]);
    assert!(
        !alone.contains("KL") && !alone.contains("substituted"),
        "{alone}"
    );
}

#[test]
fn environment_names_the_model() {
    let (_folder, text) = folder(held_out());
    let output = locum(&["eval", "--text", &text, "--length", "64", "--json"])
        .env("LOCUM_MODEL", tiny_olmoe())
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["model"], json!(tiny_olmoe()));
}

#[test]
fn memory_is_announced() {
    let (_folder, text_file) = folder(held_out());
    let output = run(&["eval", "--text", &text_file, "--length", "64"]);
    let error = text(&output.stderr);
    assert!(
        error.starts_with("needs ") && error.contains("weights 6.32 MB, key-value caches "),
        "{error}"
    );
}

#[test]
fn texts_that_cannot_be_read() {
    let unpruned = tiny_olmoe();
    let refused_text = |contents: &[u8], arguments: &[&str], parts: &[&str]| {
        let (_folder, text) = folder(contents);
        let all = [&["eval", &unpruned, "--text", &text][..], arguments].concat();
        refused(&all, parts);
    };
    refused(
        &["eval", &unpruned, "--text", "/no/such/text"],
        &["cannot open", "/no/such/text"],
    );
    refused_text(b"", &[], &["text.txt", "is empty"]);
    refused_text(b"Emma \xff was", &[], &["text.txt", "invalid utf-8"]);
    refused_text(
        b"Emma was",
        &["--length", "64"],
        &["fewer than one sequence of 65", "a shorter --length"],
    );
    for length in ["0", "513", "18446744073709551615"] {
        refused_text(
            held_out().as_bytes(),
            &["--length", length],
            &[&format!(
                "a length of {length} tokens is not between 1 and the model's context of 512"
            )],
        );
    }
}

#[test]
fn models_that_cannot_be_compared() {
    let (_folder, text) = folder(held_out());
    let unpruned = tiny_olmoe();
    let compare = |with: &str, parts: &[&str]| {
        refused(
            &[
                "eval",
                &unpruned,
                "--text",
                &text,
                "--length",
                "64",
                "--against",
                with,
            ],
            parts,
        );
    };
    compare("/no/such/model", &["no such directory: /no/such/model"]);
    // 160 tokens, and the tokenizer of 2048.
    let other = TestModel::of_fixture("olmoe/base").write();
    compare(path(&other), &["160 ", "2048 ", "cannot be compared"]);
    // The same model with two tokens exchanged.
    let renamed = TestModel::of_fixture("tiny-olmoe").write();
    let file = renamed.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    let tokens: Vec<String> = vocabulary.keys().skip(300).take(2).cloned().collect();
    let ids = [
        vocabulary[&tokens[1]].clone(),
        vocabulary[&tokens[0]].clone(),
    ];
    for (token, id) in tokens.iter().zip(ids) {
        vocabulary[token] = id;
    }
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    compare(
        path(&renamed),
        &["--against", "has other tokens", "cannot be compared"],
    );
}

#[test]
fn models_that_cannot_be_run() {
    let (_folder, text) = folder(held_out());
    // 160 tokens, and the tokenizer of 2048.
    let small = TestModel::of_fixture("olmoe/base").write();
    refused(
        &["eval", path(&small), "--text", &text, "--length", "64"],
        &["is outside the model's vocabulary of 160"],
    );
    refused(
        &["eval", "/no/such/model", "--text", &text],
        &["no such directory: /no/such/model"],
    );
    let mut without = TestModel::of_fixture("tiny-olmoe");
    without.tokenizer = false;
    refused(
        &["eval", path(&without.write()), "--text", &text],
        &["tokenizer.json not found"],
    );
    let mut unusable = TestModel::of_fixture("tiny-olmoe");
    let norm = unusable.tensors.get_mut("model.norm.weight").unwrap();
    // bf16 NaN.
    norm.bytes[..2].copy_from_slice(&[0xc0, 0x7f]);
    let directory = unusable.write();
    let output = run(&["eval", path(&directory), "--text", &text, "--length", "64"]);
    let error = common::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty(), "{error}");
    for part in ["the logits of token 0 of window 0", path(&directory)] {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}
