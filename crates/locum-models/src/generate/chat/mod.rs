//! Chats, and the prompts that a model's template makes of them.
//!
//! A model that was tuned for chat expects messages between marks of its own. Its template, written
//! in Jinja, comes with its tokenizer and is rendered as transformers' `apply_chat_template` does.

mod engine;
mod find;

use std::path::{Path, PathBuf};

use minijinja::Environment;
use minijinja::value::Value;

use crate::ModelError;

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message of any role.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: content.into(),
        }
    }

    /// What the model is told about its task.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// What a person says.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// What the model said.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }
}

/// A chat, ready to become a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chat {
    /// The messages so far.
    pub messages: Vec<Message>,
    /// Whether the prompt ends with the mark that the model's answer follows.
    pub add_generation_prompt: bool,
}

impl Chat {
    /// A chat that the model is to answer.
    #[must_use]
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            add_generation_prompt: true,
        }
    }
}

/// The template of a model's chats; [`ModelFiles::chat_template`](crate::ModelFiles::chat_template)
/// reads a model's own.
///
/// ```
/// use locum_models::{Chat, ChatTemplate, Message};
///
/// let template = ChatTemplate::new(
///     "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}\
///      {% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
///     [("eos_token".into(), "</s>".into())],
/// )?;
/// let chat = Chat::new([Message::user("Who is Emma?")]);
/// assert_eq!(template.render(&chat)?, "<|user|>Who is Emma?</s><|assistant|>");
/// # Ok::<(), locum_models::ModelError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    engine: Environment<'static>,
    special_tokens: Vec<(String, String)>,
    /// Where it is from, for messages.
    file: Option<PathBuf>,
}

impl ChatTemplate {
    /// Parses a template. `special_tokens` are the variables that it may name special tokens by,
    /// such as `bos_token`.
    ///
    /// # Errors
    ///
    /// What is no Jinja template ([`ModelError::ChatTemplate`], with the line).
    pub fn new(
        source: &str,
        special_tokens: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            engine: engine::with_template(source).map_err(|error| engine::described(&error))?,
            special_tokens: special_tokens.into_iter().collect(),
            file: None,
        })
    }

    /// Parses a template that was read from a file.
    fn of_file(
        file: &Path,
        source: &str,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, ModelError> {
        let template = Self::new(source, special_tokens).map_err(|error| error.in_file(file))?;
        Ok(Self {
            file: Some(file.to_path_buf()),
            ..template
        })
    }

    /// Makes a prompt of a chat. Special tokens are in it by name, so it is to be encoded without
    /// adding any: [`Prompt::Formatted`](crate::Prompt::Formatted).
    ///
    /// # Errors
    ///
    /// A template that refuses the chat, fails, or does not end ([`ModelError::ChatTemplate`], with
    /// the line, and with the file that [`ModelFiles`](crate::ModelFiles) read it from).
    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        let special = self
            .special_tokens
            .iter()
            .map(|(name, token)| (name.as_str(), Value::from(token.as_str())));
        let message = |message: &Message| {
            Value::from_pairs([
                ("role", message.role.as_str()),
                ("content", message.content.as_str()),
            ])
        };
        let messages: Vec<Value> = chat.messages.iter().map(message).collect();
        let variables = special.chain([
            ("messages", Value::from(messages)),
            // Templates ask whether these are none, not only whether they are there.
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            (
                "add_generation_prompt",
                Value::from(chat.add_generation_prompt),
            ),
        ]);
        let variables = Value::from_pairs(variables);
        engine::render(&self.engine, variables).map_err(|error| {
            let error = engine::described(&error);
            match &self.file {
                Some(file) => error.in_file(file),
                None => error,
            }
        })
    }
}
