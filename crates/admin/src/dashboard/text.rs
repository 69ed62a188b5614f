//! Formatting: links, times, ages, and JSON as it was sent.

use std::time::Duration;

use jiff::Timestamp;
use maud::{Markup, html};
use semel_telemetry::{escape, format_duration};
use serde::de::IgnoredAny;

/// Percent-encodes a value for a query.
pub(super) fn encode(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// A relative link to a page with this query.
pub(super) fn link<'a>(page: &str, query: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs: Vec<String> =
        query.into_iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    match pairs.is_empty() {
        true => page.to_owned(),
        false => format!("{page}?{}", pairs.join("&")),
    }
}

/// A time that a view has, to the second, as an element.
pub(super) fn time(at: &str) -> Markup {
    let shown = at.parse::<Timestamp>().map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    html! { time datetime=(at) title=(at) { (shown.as_deref().unwrap_or(at)) } }
}

/// An age, as in `3m 12s`.
pub(super) fn age(millis: u64) -> String {
    format_duration(Duration::from_millis(millis))
}

/// A text that others wrote, without characters that could hide or reorder what follows.
pub(super) fn safe(text: &str) -> String {
    escape::line(text)
}

/// The caller, as people read it.
pub(super) fn caller(name: &str) -> Markup {
    match name {
        "" => html! { span.quiet { "(anonymous)" } },
        name => html! { (safe(name)) },
    }
}

/// A number with separators between thousands.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len().saturating_add(digits.len() / 3));
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && digits.len().saturating_sub(place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 record`, `2 records`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{} {noun}s", count(number)),
    }
}

/// A number of bytes, as people read it.
pub(super) fn bytes(number: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => {
            let tenths = u128::from(number) * 10 / u128::from(size);
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{number} B"),
    }
}

/// A body as it was recorded. JSON is indented, and otherwise every character stays: a number is
/// never read.
pub(super) fn body(text: &str) -> String {
    let is_json = text.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<IgnoredAny>(text).is_ok();
    escape::lines(&if is_json { indent_json(text) } else { text.to_owned() })
}

/// Indents a valid JSON text.
fn indent_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len().saturating_mul(2));
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if in_string {
            out.push(c);
            in_string = is_escaped || c != '"';
            is_escaped = c == '\\' && !is_escaped;
            continue;
        }
        match c {
            ' ' | '\t' | '\n' | '\r' => continue,
            '{' | '[' => {
                while characters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                out.push(c);
                if let Some(end) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                    continue;
                }
                depth = depth.saturating_add(1);
                new_line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => {
                in_string = c == '"';
                out.push(c);
            }
        }
    }
    out
}

/// The indentation is bounded: a deep text must not grow with the square of its depth.
fn new_line(out: &mut String, depth: usize) {
    const DEPTH_MAX: usize = 32;
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(DEPTH_MAX)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_reads_back_as_its_values() {
        assert_eq!(link("records", []), "records");
        let query = [("key", "a&b=c d%ë\"<"), ("caller", "")];
        assert_eq!(link("record", query), "record?key=a%26b%3Dc%20d%25%C3%AB%22%3C&caller=");
    }

    #[test]
    fn json_is_indented_and_no_number_is_read() {
        let text = concat!(
            r#"{"id":9007199254740993, "amount":1.0,"e":1e400,"#,
            r#""s":"a\"{,:}\\","l":[ ],"n":[{"x":null}]}"#
        );
        let expected = r#"{
  "id": 9007199254740993,
  "amount": 1.0,
  "e": 1e400,
  "s": "a\"{,:}\\",
  "l": [],
  "n": [
    {
      "x": null
    }
  ]
}"#;
        assert_eq!(body(text), expected);
        assert_eq!(body("plain {text}"), "plain {text}");
        assert_eq!(body("{not json"), "{not json");
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(body(&deep).len() < 100 * 2 * 70);
    }

    #[test]
    fn characters_that_reorder_text_are_escaped() {
        assert_eq!(body("a\u{202e}b\n\tc"), "a\\u202eb\n\tc");
        assert_eq!(safe("a\nb"), "a\\nb");
    }

    #[test]
    fn numbers_are_exact_and_readable() {
        let shown = [0, 999, 1000, 9_007_199_254_740_993].map(count);
        assert_eq!(shown, ["0", "999", "1,000", "9,007,199,254,740,993"]);
        assert_eq!([counted(1, "record"), counted(1200, "record")], ["1 record", "1,200 records"]);
        assert_eq!([bytes(1023), bytes(1536), bytes(5 << 30)], ["1023 B", "1.5 KiB", "5.0 GiB"]);
    }
}
