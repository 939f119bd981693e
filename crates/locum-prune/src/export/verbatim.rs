//! JSON objects whose values stay as they are written.
//!
//! Numbers of a configuration must not change on their way through this program: `1e-05` stays
//! `1e-05`, and a factor of seventeen digits the same to the last one. So a value that is not edited
//! is never parsed; only where it ends is looked for.

use serde_json::Value;

/// The members of an object: keys, and values as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verbatim(Vec<(String, String)>);

impl Verbatim {
    /// Takes an object apart. `None` where the text is no object.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // From here on the text is known to be JSON.
        let value: Value = serde_json::from_str(text).ok()?;
        value.as_object()?;
        let mut members = Self::default();
        let mut rest = text.trim_ascii().strip_prefix('{')?.trim_ascii_start();
        while !rest.starts_with('}') {
            let (key, after) = split_value(rest)?;
            let key: String = serde_json::from_str(key).ok()?;
            let after = after.trim_ascii_start().strip_prefix(':')?;
            let (value, after) = split_value(after.trim_ascii_start())?;
            // Of two equal names the last counts, as everywhere.
            members.remove(&key);
            members.0.push((key, value.to_owned()));
            let after = after.trim_ascii_start();
            rest = after.strip_prefix(',').unwrap_or(after).trim_ascii_start();
        }
        Some(members)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The object that is the value of a key; `None` where there is none.
    pub(super) fn object(&self, key: &str) -> Option<Self> {
        let (_, value) = self.0.iter().find(|(found, _)| found == key)?;
        Self::parse(value)
    }

    /// Whether a key was there, which it is not any more.
    pub(super) fn remove(&mut self, key: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(found, _)| found != key);
        self.0.len() < before
    }

    /// Sets a value, in the place of the one that is there, or at the end.
    pub(super) fn set(&mut self, key: &str, value: String) {
        match self.0.iter_mut().find(|(found, _)| found == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// The object as text, so far within others, two spaces for each.
    pub(super) fn text(&self, depth: usize) -> String {
        if self.0.is_empty() {
            return "{}".into();
        }
        let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
        let members: Vec<String> = self
            .0
            .iter()
            .map(|(key, value)| format!("{inner}{}: {value}", Value::from(key.as_str())))
            .collect();
        format!("{{\n{}\n{outer}}}", members.join(",\n"))
    }
}

/// A value as text that is to stand so far within others.
pub(super) fn text_of(value: &Value, depth: usize) -> String {
    let indented = format!("\n{}", "  ".repeat(depth));
    // No string has a line break in JSON, so each one is between members.
    format!("{value:#}").replace('\n', &indented)
}

/// A value of valid JSON from its first byte on, and what follows.
fn split_value(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    let mut bytes = text.bytes().enumerate();
    while let Some((place, byte)) = bytes.next() {
        let end = match byte {
            b'"' => {
                let mut escaped = false;
                let close = bytes.find(|(_, byte)| {
                    let closes = *byte == b'"' && !escaped;
                    escaped = *byte == b'\\' && !escaped;
                    closes
                });
                (depth == 0).then_some(close?.0 + 1)
            }
            b'{' | b'[' => {
                depth += 1;
                None
            }
            b'}' | b']' if depth > 0 => {
                depth -= 1;
                (depth == 0).then_some(place + 1)
            }
            // After a number or a word.
            b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => Some(place),
            _ => None,
        };
        if let Some(end) = end {
            return Some(text.split_at(end));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "eps": 1e-05,
  "factor": 0.14076539064871763,
  "text": "a \"quoted\" \\ } ] , \\",
  "list": [1, {"a": "]"}, [ ]],
  "none": null,
  "nested": {
    "big": 123456789012345678901234567890
  }
}"#;

    #[test]
    fn what_is_not_edited_stays_to_the_byte() {
        let members = Verbatim::parse(TEXT).expect("an object");
        assert_eq!(members.text(0), TEXT);
        let mut edited = members.clone();
        edited.set("none", text_of(&serde_json::json!({ "1": [2, 3] }), 1));
        edited.set("new", "0.10".into());
        assert!(edited.remove("list") && !edited.remove("list"));
        let expected = TEXT
            .replace("  \"list\": [1, {\"a\": \"]\"}, [ ]],\n", "")
            .replace("null", "{\n    \"1\": [\n      2,\n      3\n    ]\n  }")
            .replace("  }\n}", "  },\n  \"new\": 0.10\n}");
        assert_eq!(edited.text(0), expected);
    }

    #[test]
    fn nested_objects_are_taken_apart_as_well() {
        let members = Verbatim::parse(TEXT).expect("an object");
        let nested = members.object("nested").expect("an object");
        assert_eq!(
            nested.text(1),
            "{\n    \"big\": 123456789012345678901234567890\n  }"
        );
        assert_eq!(members.object("list"), None);
        assert_eq!(members.object("eps"), None);
        assert_eq!(members.object("no"), None);
    }

    #[test]
    fn any_white_space_is_read() {
        let compact = r#"{"a":1,"b":{"c":true},"b":-2.50}"#;
        let members = Verbatim::parse(compact).expect("an object");
        assert_eq!(members.text(0), "{\n  \"a\": 1,\n  \"b\": -2.50\n}");
        let wide = "\r\n { \"a\" :\t[ ] , \"\\u0062\" : \"x\" } \n";
        let members = Verbatim::parse(wide).expect("an object");
        assert_eq!(members.text(0), "{\n  \"a\": [ ],\n  \"b\": \"x\"\n}");
        assert!(Verbatim::parse("{ }").is_some_and(|members| members.is_empty()));
        assert_eq!(Verbatim::parse("[1]"), None);
        assert_eq!(Verbatim::parse("{"), None);
    }
}
