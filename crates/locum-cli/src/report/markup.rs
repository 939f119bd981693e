//! Text within markup.

use std::fmt::Display;

/// Text as it must be written between tags and in attributes, of HTML and of XML. Characters that XML
/// cannot hold are replaced.
pub(super) fn escaped(text: impl Display) -> String {
    let mut escaped = String::new();
    for character in text.to_string().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' => escaped.push(' '),
            '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Three significant digits.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".into()
    } else if !(1e-3..1e6).contains(&magnitude) {
        format!("{value:.2e}")
    } else {
        let digits = (2 - magnitude.log10().floor() as i32).max(0) as usize;
        format!("{value:.digits$}")
    }
}

/// The same as a label of an axis: no zeros at the end.
pub(super) fn label(value: f64) -> String {
    let text = number(value);
    if !text.contains('.') {
        return text;
    }
    match text.split_once('e') {
        Some((mantissa, power)) => {
            format!(
                "{}e{power}",
                mantissa.trim_end_matches('0').trim_end_matches('.')
            )
        }
        None => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// Ids with runs shortened: `0 2 9–12`.
pub(super) fn runs(ids: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &id in ids {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => runs.push((id, id)),
        }
    }
    let shown = runs.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first} {last}"),
        _ => format!("{first}–{last}"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{escaped, label, number, runs};

    #[test]
    fn markup_in_text_is_text() {
        assert_eq!(
            escaped("<script>alert('a\" & b')</script>\u{1}\n"),
            "&lt;script&gt;alert(&#39;a&quot; &amp; b&#39;)&lt;/script&gt;\u{fffd} "
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let numbers = [0.0, 0.012_345, 1.0, 12.345, 1234.5, 1.2345e-5, 3.0e9];
        assert_eq!(
            numbers.map(number),
            ["0", "0.0123", "1.00", "12.3", "1234", "1.23e-5", "3.00e9"]
        );
        let labels = [0.0, 0.1, 0.25, 1.0, 100.0, 1e-5];
        assert_eq!(labels.map(label), ["0", "0.1", "0.25", "1", "100", "1e-5"]);
    }

    #[test]
    fn runs_of_ids_are_shortened() {
        assert_eq!(runs(&[0, 2, 3, 9, 10, 11, 12]), "0 2 3 9–12");
        assert_eq!(runs(&[]), "");
    }
}
