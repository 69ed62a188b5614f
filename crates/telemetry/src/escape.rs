//! Text that others wrote, made safe for a log and a terminal.

use std::fmt::Write as _;

/// Adds a character, or its escape if it could end a line, colour it or turn it around.
pub fn push(out: &mut String, c: char) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if must_be_escaped(c) => {
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
pub fn line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        push(&mut out, c);
        out
    })
}

/// A text that keeps its lines and tabs.
pub fn lines(text: &str) -> String {
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
pub fn shell(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// JSON text in which nothing is hidden: it reads back as the same value. Such a character can
/// only be part of a string there.
pub fn json(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if must_be_escaped(c) {
            push(&mut out, c);
        } else {
            out.push(c);
        }
        out
    })
}

fn must_be_escaped(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

/// Characters that change how a line looks but cannot be seen: separators of lines, and all that
/// Unicode 16 lists as format characters (`Cf`) or as `Default_Ignorable_Code_Point`, among them
/// directions, joiners, variation selectors and tags.
const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_and_control_characters_are_escaped() {
        assert_eq!(line("a\nb\r\t\x1b[31m"), r"a\nb\r\t\u001b[31m");
        assert_eq!(line("\u{202e}x\u{2028}"), r"\u202ex\u2028");
        assert_eq!(line("Zoë 💳"), "Zoë 💳");
        assert_eq!(lines("a\n\tb\x07"), "a\n\tb\\u0007");
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(line("a\u{2060}b\u{ad}\u{61c}\u{180e}"), r"a\u2060b\u00ad\u061c\u180e");
        assert_eq!(line("\u{e0041}\u{e0101}"), r"\udb40\udc41\udb40\udd01");
        assert_eq!(line("\u{3164}\u{fe0f}\u{fff9}\u{1d173}"), r"\u3164\ufe0f\ufff9\ud834\udd73");
    }

    #[test]
    fn a_word_is_quoted_for_a_shell() {
        assert_eq!(shell("8e03-4f.x"), "8e03-4f.x");
        assert_eq!(shell(""), "''");
        assert_eq!(shell("$(rm)"), "'$(rm)'");
        assert_eq!(shell("it's"), r"'it'\''s'");
    }
}
