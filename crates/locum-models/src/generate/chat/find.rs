//! Where a model's chat template is.

use std::path::Path;

use locum_checkpoint::{read_json, read_text};
use serde_json::Value;

use super::ChatTemplate;
use crate::{ModelError, ModelFiles};

const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const FIELD: &str = "chat_template";

/// The fields of `tokenizer_config.json` that a template may name special tokens by.
const SPECIAL_TOKENS: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

impl ModelFiles {
    /// Reads the model's chat template: `chat_template.jinja`, or else `chat_template` in
    /// `tokenizer_config.json`, which also has the special tokens. Of several templates there, it is
    /// the one named `default`.
    ///
    /// # Errors
    ///
    /// No template, or one that cannot be read or parsed.
    pub fn chat_template(&self) -> Result<ChatTemplate, ModelError> {
        let none = || ModelError::NoChatTemplate(self.name().to_path_buf());
        let directory = self.directory().ok_or_else(none)?;
        let config_file = directory.join(TOKENIZER_CONFIG);
        let config = if config_file.exists() {
            read_json(&config_file)?
        } else {
            Value::Null
        };
        let in_config = |error: ModelError| error.in_file(&config_file);
        let special_tokens = special_tokens(&config).map_err(in_config)?;
        let template_file = directory.join(TEMPLATE);
        let (file, source): (&Path, String) = if template_file.exists() {
            (&template_file, read_text(&template_file)?)
        } else {
            let source = template_of_config(&config).map_err(in_config)?;
            (&config_file, source.ok_or_else(none)?)
        };
        ChatTemplate::of_file(file, &source, special_tokens)
    }
}

fn template_of_config(config: &Value) -> Result<Option<String>, ModelError> {
    let wrong = |reason| Err(ModelError::field(FIELD, reason));
    let text = |entry: &Value, part| entry.get(part).and_then(Value::as_str).map(str::to_owned);
    match config.get(FIELD) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => Ok(Some(source.clone())),
        Some(Value::Array(named)) => {
            let default = named
                .iter()
                .find(|entry| text(entry, "name").as_deref() == Some("default"));
            match default.and_then(|entry| text(entry, "template")) {
                Some(source) => Ok(Some(source)),
                None => {
                    let names: Vec<_> = named
                        .iter()
                        .filter_map(|entry| text(entry, "name"))
                        .collect();
                    wrong(format!(
                        "has no template named `default`, only: {}",
                        names.join(", ")
                    ))
                }
            }
        }
        Some(_) => wrong("must be a template or a list of named templates".into()),
    }
}

fn special_tokens(config: &Value) -> Result<Vec<(String, String)>, ModelError> {
    let mut tokens = Vec::new();
    for name in SPECIAL_TOKENS {
        let Some(value) = config.get(name).filter(|value| !value.is_null()) else {
            continue;
        };
        // A token, or an object that says how the tokenizer treats it.
        let token = value.get("content").unwrap_or(value).as_str();
        let token = token.ok_or_else(|| {
            ModelError::field(
                name,
                format!("must be a token's text or have it as `content`, found {value}"),
            )
        })?;
        tokens.push((name.to_owned(), token.to_owned()));
    }
    Ok(tokens)
}
