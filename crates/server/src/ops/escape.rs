//! Text that others wrote, made safe for a log and a terminal.

use std::fmt::Write as _;

/// Adds a character, or its escape if it could end a line, colour it or turn it around.
pub(crate) fn push(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_control() || is_hidden(c) => {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
        c => out.push(c),
    }
}

/// A text on one line.
pub(crate) fn line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        push(&mut out, c);
        out
    })
}

/// A text that keeps its lines and tabs.
pub(crate) fn lines(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if matches!(c, '\n' | '\t') {
            out.push(c)
        } else {
            push(&mut out, c)
        }
        out
    })
}

/// A word of a command, as a shell reads it back.
pub(crate) fn shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Characters that change how a line looks but cannot be seen: separators of lines, directions.
const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_forge_a_line_is_escaped() {
        assert_eq!(line("a\nb\r\t\x1b[31m"), r"a\nb\r\t\u001b[31m");
        assert_eq!(line("\u{202e}x\u{2028}"), r"\u202ex\u2028");
        assert_eq!(line("Zoë 💳"), "Zoë 💳");
        assert_eq!(lines("a\n\tb\x07"), "a\n\tb\\u0007");
    }

    #[test]
    fn a_word_is_quoted_for_a_shell() {
        assert_eq!(shell("8e03-4f.x"), "8e03-4f.x");
        assert_eq!(shell(""), "''");
        assert_eq!(shell("$(rm)"), "'$(rm)'");
        assert_eq!(shell("it's"), r"'it'\''s'");
    }
}
