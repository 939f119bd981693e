//! `locum generate`: what it prints, when it stops, and that draws repeat.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::Read;
use std::process::Stdio;

use common::{TestModel, fixture, locum, path, run, stdout, text};
use serde_json::json;

/// What transformers generates greedily from the unpruned model.
const EMMA: &str = "Emma was not quite avoided.\n\n\"I am sure you will not be able to go to Bath, and I will \
be so very much obliged to you, and I am sure you will be very glad to see you.\"\n\n\"I am sure you will be very \
glad to";

fn tiny_olmoe() -> String {
    fixture("tiny-olmoe").to_str().unwrap().to_owned()
}

#[test]
fn text_is_that_of_transformers() {
    let model = tiny_olmoe();
    let arguments = [
        "generate",
        "--prompt",
        "Emma was",
        "--max-new-tokens",
        "60",
        "--model",
        &model,
    ];
    assert_eq!(stdout(&arguments), format!("{EMMA}\n"));
    assert_eq!(
        stdout(&[&arguments[..], &["--threads", "1"]].concat()),
        format!("{EMMA}\n")
    );
}

#[test]
fn memory_is_announced_before_and_summed_up_after() {
    let output = run(&[
        "generate",
        "--prompt",
        "The Lord said unto",
        "--max-new-tokens",
        "3",
    ]);
    let error = text(&output.stderr);
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines.len(), 2, "{error}");
    // 6,316,288 bytes of tensors; the cache holds 2 × 4 layers × 128 × 4 bytes for each of 8 tokens.
    assert_eq!(
        lines[0],
        "needs 6.35 MB of memory: weights 6.32 MB, key-value cache 32.8 kB for 8 tokens"
    );
    assert!(lines[1].starts_with("3 tokens, "), "{error}");
    // A substituted expert of 3 × 128 × 128 bf16 weights is 128 of them: 16 × 98,048 bytes less.
    assert!(
        lines[1].ends_with(
            "tokens/s; weights 6.32 MB in memory, 7.89 MB if no expert were substituted"
        ),
        "{error}"
    );
}

#[test]
fn draws_repeat_with_their_seed() {
    let draw = |seed: &str| {
        stdout(&[
            "generate",
            "--prompt",
            "Alice",
            "--max-new-tokens",
            "12",
            "--temperature",
            "0.9",
            "--top-k",
            "50",
            "--top-p",
            "0.95",
            "--seed",
            seed,
        ])
    };
    assert_eq!(draw("3"), draw("3"));
    assert_ne!(draw("3"), draw("4"));
}

#[test]
fn one_candidate_is_the_greedy_choice() {
    let greedy = stdout(&["generate", "--prompt", "Alice", "--max-new-tokens", "12"]);
    for cut in [["--top-k", "1"], ["--top-p", "1e-9"]] {
        let drawn = stdout(&[
            "generate",
            "--prompt",
            "Alice",
            "--max-new-tokens",
            "12",
            "--temperature",
            "5",
            cut[0],
            cut[1],
        ]);
        assert_eq!(drawn, greedy);
    }
}

#[test]
fn generation_ends_at_any_end_token() {
    // The second new token of `EMMA` is ` quite`; whichever file names it, it ends the text.
    let tokenizer = std::fs::read(fixture("tiny-olmoe/tokenizer.json")).unwrap();
    let tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).unwrap();
    let end = &tokenizer["model"]["vocab"]["Ġquite"];
    assert!(end.is_u64());
    let mut model = TestModel::of_fixture("tiny-olmoe");
    model.config["eos_token_id"] = json!([5, end]);
    let directory = model.write();
    let arguments = [
        "generate",
        "--prompt",
        "Emma was",
        "--model",
        path(&directory),
    ];
    assert_eq!(stdout(&arguments), "Emma was not\n");
    // generation_config.json comes first.
    let other = directory.path().join("generation_config.json");
    std::fs::write(other, r#"{ "eos_token_id": 7 }"#).unwrap();
    assert!(stdout(&arguments).starts_with("Emma was not quite"));
}

#[test]
fn generation_ends_at_the_context_limit() {
    let mut model = TestModel::of_fixture("tiny-olmoe");
    model.config["max_position_embeddings"] = json!(6);
    let directory = model.write();
    let output = run(&[
        "generate",
        "--prompt",
        "Emma was",
        "--model",
        path(&directory),
    ]);
    assert!(
        text(&output.stderr).contains("3 tokens, "),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(
        text(&output.stdout),
        format!("{}\n", &EMMA[.."Emma was not quite a".len()])
    );
}

#[test]
fn stop_strings_end_the_text_where_the_first_begins() {
    let model = tiny_olmoe();
    let arguments = [
        "generate",
        "--prompt",
        "Emma was",
        "--max-new-tokens",
        "60",
        "--model",
        &model,
    ];
    let stopped = |stop: &[&str]| stdout(&[&arguments[..], stop].concat());
    assert_eq!(
        stopped(&["--stop", "Bath", "--stop", "h, and I w"]),
        "Emma was not quite avoided.\n\n\"I am sure you will not be able to go to \n"
    );
    // What might have become a stop string when the tokens ran out is printed.
    assert_eq!(stopped(&["--stop", "very glad to be"]), format!("{EMMA}\n"));
}

#[test]
fn repetition_penalty_changes_the_text() {
    let arguments = ["generate", "--prompt", "Alice", "--max-new-tokens", "30"];
    let with = |penalty| stdout(&[&arguments[..], &["--repetition-penalty", penalty]].concat());
    assert_eq!(with("1"), stdout(&arguments));
    assert_ne!(with("1.5"), stdout(&arguments));
}

#[test]
fn chat_is_formatted_by_the_models_template_and_only_the_answer_is_printed() {
    let directory = TestModel::of_fixture("tiny-olmoe").write();
    std::fs::write(
        directory.path().join("chat_template.jinja"),
        "{%- for message in messages %}\n\
         {{- {'system': 'Em', 'user': 'was'}[message.role] if message.content else '?' }}\n\
         {{- 'ma ' if message.role == 'system' and message.content == 'Be brief.' }}\n\
         {%- endfor %}\n\
         {{- '' if add_generation_prompt else 'not' }}",
    )
    .unwrap();
    let answer = stdout(&[
        "generate",
        "--chat",
        "--system",
        "Be brief.",
        "--prompt",
        "Who is Emma?",
        "--max-new-tokens",
        "60",
        "--model",
        path(&directory),
    ]);
    assert_eq!(answer, format!("{}\n", &EMMA["Emma was".len()..]));
}

#[test]
fn closed_pipe_is_no_failure() {
    let mut child = locum(&[
        "generate",
        "--prompt",
        "The Lord",
        "--max-new-tokens",
        "400",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut first = [0; 4];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(
        !text(&output.stderr).contains("error"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn bf16_activations_generate_text() {
    let output = stdout(&[
        "generate",
        "--prompt",
        "The Lord said unto",
        "--max-new-tokens",
        "8",
        "--dtype",
        "bf16",
    ]);
    assert!(output.len() > "The Lord said unto".len() + 8, "{output}");
}

#[test]
fn prompt_may_begin_with_a_dash_and_an_empty_variable_is_none() {
    let output = locum(&["generate", "--prompt", "- item", "--max-new-tokens", "2"])
        .env("LOCUM_MODEL", "")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("- item"));
    let output = locum(&["inspect"])
        .env("LOCUM_MODEL", tiny_olmoe())
        .output()
        .unwrap();
    assert!(text(&output.stdout).contains("none: every expert is retained"));
}
