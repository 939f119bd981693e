//! The template engine, set up as transformers sets up Jinja
//! (`transformers/utils/chat_template_utils.py`).

use std::error::Error as _;
use std::fmt::Write;

use chrono::format::StrftimeItems;
use chrono::{DateTime, Local};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::ModelError;

const NAME: &str = "chat_template";

/// Steps that rendering may take. A template takes some tens for each message; one that takes this
/// many never ends, or would fill the memory.
const FUEL: u64 = 10_000_000;

/// An engine that has parsed one template.
pub(super) fn with_template(source: &str) -> Result<Environment<'static>, Error> {
    let mut engine = Environment::new();
    engine.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    engine.set_auto_escape_callback(|_| AutoEscape::None);
    engine.set_unknown_method_callback(unknown_method_callback);
    engine.set_fuel(Some(FUEL));
    // So that an error says what is undefined.
    engine.set_debug(true);
    engine.add_filter("tojson", to_json);
    engine.add_function("raise_exception", raise_exception);
    engine.add_function("strftime_now", |format: &str| {
        strftime(&Local::now(), format)
    });
    engine.add_template_owned(NAME, source.to_owned())?;
    Ok(engine)
}

/// Renders the template.
pub(super) fn render(engine: &Environment<'static>, variables: Value) -> Result<String, Error> {
    engine.get_template(NAME)?.render(variables)
}

/// What a template says by `raise_exception`, and not the engine.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

/// An error of a template, with its line.
pub(super) fn described(error: &Error) -> ModelError {
    // The engine wraps what happens in a part of a template, such as a block.
    let mut innermost = error;
    while let Some(source) = innermost.source().and_then(|e| e.downcast_ref::<Error>()) {
        innermost = source;
    }
    let raised = innermost
        .source()
        .is_some_and(<dyn std::error::Error>::is::<Raised>);
    ModelError::ChatTemplate {
        line: innermost.line().or(error.line()),
        reason: match innermost.detail() {
            Some(detail) if raised => format!("it refuses the chat: {detail}"),
            Some(detail) => format!("{}: {detail}", innermost.kind()),
            None => innermost.kind().to_string(),
        },
    }
}

/// A time in Python's `strftime` notation, which `chrono` reads as well.
fn strftime(time: &DateTime<Local>, format: &str) -> Result<String, Error> {
    let unknown = || {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now does not know the format {format:?}"),
        )
    };
    let items = StrftimeItems::new(format).parse().map_err(|_| unknown())?;
    let mut text = String::new();
    write!(text, "{}", time.format_with_items(items.iter())).map_err(|_| unknown())?;
    Ok(text)
}

/// JSON as Python's `json.dumps` writes it; the engine's own filter escapes HTML, and Jinja's is
/// replaced by transformers for the same reason.
fn to_json(value: &Value, arguments: Kwargs) -> Result<String, Error> {
    let indent: Option<u8> = arguments.get("indent")?;
    let ascii: Option<bool> = arguments.get("ensure_ascii")?;
    arguments.assert_all_used()?;
    let json = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.into());
            written(value, PrettyFormatter::with_indent(indent.as_bytes()))
        }
        None => written(value, Spaced),
    }?;
    if ascii != Some(true) {
        return Ok(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
    }
    Ok(escaped)
}

fn written(value: &Value, formatter: impl Formatter) -> Result<String, Error> {
    let failed = |reason: String| Error::new(ErrorKind::BadSerialization, reason);
    let mut json = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut json, formatter))
        .map_err(|error| failed(error.to_string()))?;
    String::from_utf8(json).map_err(|error| failed(error.to_string()))
}

/// Python's separators on one line: `", "` and `": "`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use chrono::{Local, TimeZone};

    use super::strftime;

    #[test]
    fn dates_are_written_as_python_writes_them() {
        let time = Local.with_ymd_and_hms(2026, 7, 4, 9, 5, 3).unwrap();
        let written = |format| strftime(&time, format).unwrap();
        assert_eq!(written("%d %b %Y"), "04 Jul 2026");
        assert_eq!(
            written("%A, %-d %B %Y, %H:%M:%S"),
            "Saturday, 4 July 2026, 09:05:03"
        );
        assert_eq!(written("%Y-%m-%d %% %j"), "2026-07-04 % 185");
    }

    #[test]
    fn unknown_date_format_is_an_error() {
        let error = strftime(&Local::now(), "%Q").unwrap_err();
        assert_eq!(
            error.detail(),
            Some("strftime_now does not know the format \"%Q\"")
        );
    }
}
