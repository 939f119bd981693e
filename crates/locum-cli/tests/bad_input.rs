//! Whatever is wrong with a model, or with what is asked of it, is one line and exit code 2.
#![allow(clippy::unwrap_used)]

mod common;

use common::{TestModel, fixture, path, refused};
use safetensors::Dtype;
use serde_json::json;

const EXPERT: &str = "model.layers.1.mlp.experts.3";

/// Generates from a model that something is wrong with.
#[track_caller]
fn refused_model(model: &TestModel, parts: &[&str]) {
    let directory = model.write();
    refused(
        &["generate", "--prompt", "A", "--model", path(&directory)],
        parts,
    );
}

fn approx() -> TestModel {
    TestModel::of_fixture("olmoe/approx")
}

#[test]
fn directory_that_is_not_there() {
    refused(
        &["generate", "--prompt", "A", "--model", "/no/such/model"],
        &["no such directory: /no/such/model"],
    );
}

#[test]
fn file_in_place_of_a_directory() {
    let config = fixture("olmoe/base/config.json");
    let config = config.to_str().unwrap();
    refused(
        &["inspect", "--model", config],
        &[config, "is not a directory"],
    );
}

#[cfg(unix)]
#[test]
fn links_to_nowhere_and_pipes_are_named() {
    let directory = approx().write();
    let tokenizer = directory.path().join("tokenizer.json");
    let arguments = ["generate", "--prompt", "A", "--model", path(&directory)];
    std::fs::remove_file(&tokenizer).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &tokenizer).unwrap();
    refused(&arguments, &["tokenizer.json", "not a regular file"]);
    std::fs::remove_file(&tokenizer).unwrap();
    std::fs::write(&tokenizer, "version https://git-lfs.github.com/spec/v1\n").unwrap();
    refused(&arguments, &["tokenizer.json", "git lfs pull"]);
    let config = directory.path().join("config.json");
    std::fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink("gone.json", &config).unwrap();
    refused(&arguments, &["config.json"]);
}

#[test]
fn generation_config_that_is_no_object() {
    let directory = approx().write();
    std::fs::write(directory.path().join("generation_config.json"), "[]").unwrap();
    refused(
        &["generate", "--prompt", "A", "--model", path(&directory)],
        &["generation_config.json", "must be a JSON object"],
    );
}

#[test]
fn layer_beyond_the_last() {
    let mut model = TestModel::of_fixture("olmoe/base");
    model.config["num_hidden_layers"] = json!(2);
    refused_model(&model, &["33 tensors are unexpected", "model.layers.2."]);
}

#[test]
fn directory_without_config() {
    let directory = tempfile::TempDir::new().unwrap();
    refused(
        &["inspect", "--model", path(&directory)],
        &["config.json not found in", path(&directory)],
    );
}

#[test]
fn config_that_is_not_json() {
    let directory = approx().write();
    std::fs::write(directory.path().join("config.json"), "{\"model_type\": ").unwrap();
    refused(
        &["inspect", "--model", path(&directory)],
        &["config.json", "line 1"],
    );
}

#[test]
fn directory_without_weights() {
    let directory = approx().write();
    std::fs::remove_file(directory.path().join("model.safetensors")).unwrap();
    refused(
        &["inspect", "--model", path(&directory)],
        &["model.safetensors", path(&directory)],
    );
}

#[test]
fn unsupported_model_type_lists_the_supported_ones() {
    let mut model = approx();
    model.config["model_type"] = json!("llama");
    model.config["architectures"] = json!(["LlamaForCausalLM"]);
    refused_model(
        &model,
        &["config.json", "model_type \"llama\"", "supported: olmoe"],
    );
}

#[test]
fn directory_without_tokenizer() {
    let mut model = approx();
    model.tokenizer = false;
    refused_model(&model, &["tokenizer.json not found in"]);
}

#[test]
fn empty_prompt() {
    refused(&["generate", "--prompt", ""], &["the prompt is empty"]);
}

#[test]
fn prompt_longer_than_the_context() {
    let prompt = "word ".repeat(600);
    refused(
        &["generate", "--prompt", &prompt],
        &[
            "the prompt has",
            "512 of the model's max_position_embeddings",
        ],
    );
}

#[test]
fn prompt_of_tokens_that_the_model_does_not_have() {
    // The fixture's vocabulary has 160 tokens, the tokenizer 2048.
    let directory = approx().write();
    refused(
        &[
            "generate",
            "--prompt",
            "Alice thought",
            "--model",
            path(&directory),
        ],
        &["token id", "outside the model's vocabulary of 160"],
    );
}

#[test]
fn dtype_that_is_no_weight() {
    let mut model = approx();
    model.add(&format!("{EXPERT}.up_proj.weight"), Dtype::I32, &[48, 64]);
    refused_model(
        &model,
        &[
            "model.layers.1.mlp.experts.3.up_proj.weight",
            "expected f32, f16 or bf16",
        ],
    );
}

#[test]
fn tensor_of_the_wrong_shape() {
    let mut model = approx();
    model.add(
        "model.layers.0.self_attn.k_proj.weight",
        Dtype::F32,
        &[64, 64],
    );
    refused_model(
        &model,
        &["`model.layers.0.self_attn.k_proj.weight` has shape [64, 64], expected [32, 64]"],
    );
}

#[test]
fn expert_tensor_of_the_wrong_shape() {
    let mut model = approx();
    model.add(&format!("{EXPERT}.down_proj.weight"), Dtype::F32, &[48, 64]);
    refused_model(
        &model,
        &["experts.3.down_proj.weight` has shape [48, 64], expected [64, 48]"],
    );
}

#[test]
fn missing_retained_expert() {
    let mut model = approx();
    model
        .tensors
        .retain(|name, _| !name.starts_with(&format!("{EXPERT}.")));
    refused_model(
        &model,
        &[
            "3 weights missing",
            "`model.layers.1.mlp.experts.3.gate_proj.weight` (layer 1, expert 3)",
        ],
    );
}

#[test]
fn missing_expert_of_an_unpruned_model() {
    let mut model = TestModel::of_fixture("olmoe/base");
    model.tensors.remove(&format!("{EXPERT}.up_proj.weight"));
    refused_model(
        &model,
        &[
            "1 weight missing",
            "`model.layers.1.mlp.experts.3.up_proj.weight`",
        ],
    );
}

#[test]
fn missing_weight_that_is_no_expert() {
    let mut model = approx();
    model.tensors.remove("model.norm.weight");
    refused_model(&model, &["1 weight missing", "`model.norm.weight`"]);
}

#[test]
fn missing_constant() {
    let mut model = approx();
    model
        .tensors
        .remove("model.layers.0.mlp.experts.6.approx_value");
    refused_model(
        &model,
        &[
            "1 constant missing",
            "`model.layers.0.mlp.experts.6.approx_value` (layer 0, expert 6)",
        ],
    );
}

#[test]
fn constant_of_the_wrong_shape() {
    let mut model = approx();
    model.add(
        "model.layers.0.mlp.experts.6.approx_value",
        Dtype::F32,
        &[1, 64],
    );
    refused_model(
        &model,
        &["experts.6.approx_value` has shape [1, 64], expected [64]"],
    );
}

#[test]
fn constant_for_an_undeclared_expert() {
    let mut model = approx();
    model.add(
        "model.layers.0.mlp.experts.1.approx_value",
        Dtype::F32,
        &[64],
    );
    refused_model(&model, &["expert 1 of layer 0", "declared: [0, 2, 6]"]);
}

#[test]
fn constants_of_a_model_that_declares_none() {
    let mut model = approx();
    model.config["approximate_experts"] = json!({});
    refused_model(
        &model,
        &[
            "10 tensors are unexpected",
            "experts.0.approx_value",
            "2 more",
        ],
    );
}

#[test]
fn both_config_formats_at_once() {
    let mut model = TestModel::of_fixture("olmoe/explicit");
    model.config["approximate_experts"] = json!({ "0": [0] });
    refused_model(
        &model,
        &["`approximate_experts`", "expert_substitution`: keep one"],
    );
}

#[test]
fn declared_expert_that_the_model_does_not_have() {
    let mut model = approx();
    model.config["approximate_experts"] = json!({ "2": [8] });
    refused_model(&model, &["config.json", "[8]", "layer 2"]);
}

#[test]
fn truncated_weights() {
    let directory = approx().write();
    let file = directory.path().join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    refused(
        &["inspect", "--model", path(&directory)],
        &["model.safetensors"],
    );
}

#[test]
fn field_that_would_change_the_result() {
    for (field, value, part) in [
        ("hidden_act", json!("gelu"), "`hidden_act` \"gelu\""),
        (
            "attention_bias",
            json!(true),
            "`attention_bias` is not supported",
        ),
        (
            "rope_scaling",
            json!({ "rope_type": "yarn" }),
            "`rope_scaling.rope_type` \"yarn\"",
        ),
        (
            "quantization_config",
            json!({ "bits": 4 }),
            "`quantization_config`",
        ),
        (
            "num_attention_heads",
            json!(0),
            "`num_attention_heads` must be a positive number",
        ),
        (
            "num_experts_per_tok",
            json!(9),
            "`num_experts_per_tok` is 9",
        ),
        ("clip_qkv", json!(-1.0), "`clip_qkv` is -1"),
        ("torch_dtype", json!("float8"), "`torch_dtype` \"float8\""),
        ("clip_qkv", json!(-1), "`clip_qkv`"),
        (
            "rms_norm_eps",
            json!(-1),
            "`rms_norm_eps` must be between 0 and 1",
        ),
        ("rope_theta", json!(0), "`rope_theta`"),
        ("rope_scaling", json!("x"), "`rope_scaling`"),
        ("text_config", json!("x"), "`text_config` must be an object"),
        (
            "compression_config",
            json!(5),
            "`compression_config`: must be a map",
        ),
        ("num_experts", json!({}), "`num_experts`: has no layer"),
        ("num_experts", json!(4_294_967_295u32), "`num_experts`"),
        (
            "num_hidden_layers",
            json!(4_294_967_295u32),
            "`num_hidden_layers`",
        ),
    ] {
        let mut model = approx();
        model.config[field] = value;
        refused_model(&model, &["config.json", part]);
    }
}

#[test]
fn generation_options_outside_their_range() {
    let generate = ["generate", "--prompt", "A"];
    for (options, part) in [
        (vec!["--temperature", "-1"], "temperature is -1"),
        (vec!["--temperature", "nan"], "temperature is NaN"),
        (vec!["--temperature", "1", "--top-k", "0"], "top-k is 0"),
        (vec!["--temperature", "1", "--top-p", "1.5"], "top-p is 1.5"),
        (
            vec!["--top-k", "3"],
            "--top-k has no effect without --temperature",
        ),
        (
            vec!["--seed", "3"],
            "--seed has no effect without --temperature",
        ),
        (
            vec!["--repetition-penalty", "0"],
            "repetition-penalty is 0, but must be a number above 0",
        ),
        (
            vec!["--repetition-penalty", "-1"],
            "repetition-penalty is -1",
        ),
        (
            vec!["--stop", "x", "--stop", ""],
            "stop is empty, but must have at least one character",
        ),
        (
            vec!["--system", "Be brief."],
            "--system has no effect without --chat",
        ),
        (vec!["--device", "tpu"], "--device tpu"),
    ] {
        refused(&[&generate[..], &options].concat(), &[part]);
    }
}

#[test]
fn chat_with_a_model_without_template() {
    let chat = ["generate", "--chat", "--prompt", "A"];
    let parts = [
        "no chat template for",
        "chat_template.jinja",
        "tokenizer_config.json",
    ];
    refused(&chat, &parts);
    let directory = approx().write();
    let arguments = [&chat[..], &["--model", path(&directory)]].concat();
    refused(&arguments, &parts);
    refused(&arguments, &[path(&directory)]);
}

#[test]
fn chat_that_the_template_refuses() {
    let directory = approx().write();
    let template = "\n{{ raise_exception('no\nsystem messages') }}";
    std::fs::write(directory.path().join("chat_template.jinja"), template).unwrap();
    let arguments = ["generate", "--chat", "--model", path(&directory)];
    refused(
        &[&arguments[..], &["--prompt", "A"]].concat(),
        &["chat_template.jinja: chat template, line 2: it refuses the chat: no system messages"],
    );
    refused(
        &[&arguments[..], &["--prompt", ""]].concat(),
        &["the prompt is empty"],
    );
}

#[test]
fn logits_of_unusable_input_write_nothing() {
    let out = tempfile::TempDir::new().unwrap();
    let file = out.path().join("logits.safetensors");
    let file = file.to_str().unwrap();
    let no_ids = fixture("tiny-olmoe/model.safetensors");
    for (input, part) in [
        (vec!["--input-ids", "2048"], "token id 2048"),
        (vec!["--input-ids", "-1"], "token id -1"),
        (vec!["--input-ids-file", "/no/such/file"], "/no/such/file"),
        (
            vec!["--input-ids-file", no_ids.to_str().unwrap()],
            "no tensor `input_ids`",
        ),
    ] {
        refused(&[&["logits", "--out", file][..], &input].concat(), &[part]);
    }
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 0);
}

#[test]
fn what_is_read_is_not_written_over() {
    let directory = approx().write();
    let weights = directory.path().join("model.safetensors");
    let before = std::fs::read(&weights).unwrap();
    refused(
        &[
            "logits",
            "--model",
            path(&directory),
            "--input-ids",
            "1",
            "--out",
            weights.to_str().unwrap(),
        ],
        &["cannot write", "which is read: give another place"],
    );
    assert!(std::fs::read(&weights).unwrap() == before);
}

#[test]
fn place_that_cannot_be_written() {
    refused(
        &[
            "logits",
            "--input-ids",
            "1",
            "--out",
            "/no/such/folder/x.safetensors",
        ],
        &["cannot write /no/such/folder/x.safetensors"],
    );
}

#[test]
fn kernels_that_there_are_not() {
    let output = common::locum(&["inspect"])
        .env("LOCUM_CPU", "mmx")
        .output()
        .unwrap();
    let error = common::text(&output.stderr);
    assert_eq!(
        (output.status.code(), error.lines().count()),
        (Some(2), 1),
        "{error}"
    );
    assert!(
        error.contains("LOCUM_CPU") && error.contains("portable"),
        "{error}"
    );
}
