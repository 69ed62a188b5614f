//! A Rust source as tokens, without comments, literals and what only tests compile.

/// One name or one sign of a source, with its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// The tokens of a source that are compiled outside tests. `::` is one token.
pub(crate) fn shipped(text: &str) -> Vec<Token<'_>> {
    let all = tokens(text);
    let mut kept = Vec::with_capacity(all.len());
    let mut at = 0;
    while let Some(token) = all.get(at) {
        match is_test_attribute(&all, at) {
            true => at = end_of_item(&all, at),
            false => {
                kept.push(*token);
                at += 1;
            }
        }
    }
    kept
}

/// Whether the tokens have these texts from `at` on.
pub(crate) fn matches(tokens: &[Token<'_>], at: usize, texts: &[&str]) -> bool {
    let found = tokens.iter().skip(at).map(|token| token.text);
    found.take(texts.len()).eq(texts.iter().copied())
}

/// Whether the token is a name or a keyword.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

fn is_test_attribute(tokens: &[Token<'_>], at: usize) -> bool {
    matches(tokens, at, &["#", "[", "cfg", "(", "test", ")"])
        || matches(tokens, at, &["#", "[", "cfg", "(", "all", "(", "test"])
}

/// The token after the item, field or statement that begins at `at` with an attribute.
fn end_of_item(tokens: &[Token<'_>], at: usize) -> usize {
    const WITH_BODY: [&str; 9] =
        ["async", "const", "enum", "fn", "impl", "mod", "static", "struct", "trait"];
    let mut depth = 0_usize;
    let mut has_body = false;
    let mut is_use = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            name if depth == 0 && WITH_BODY.contains(&name) => has_body = true,
            "use" if depth == 0 => is_use = true,
            _ => {}
        }
        let ends = match token.text {
            ";" => true,
            "}" => !is_use,
            "," => !is_use && !has_body,
            _ => false,
        };
        if ends && depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = token_length(rest, first);
        let (token, after) = rest.split_at(length);
        if !is_literal(token) && !is_comment(token) && !first.is_whitespace() {
            found.push(Token { text: token, line });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    found
}

fn is_comment(token: &str) -> bool {
    token.starts_with("//") || token.starts_with("/*")
}

fn is_literal(token: &str) -> bool {
    token.contains(['"', '\'']) || token.starts_with(|first: char| first.is_ascii_digit())
}

/// How many bytes the first token of `rest` has. A space and a comment are tokens here.
fn token_length(rest: &str, first: char) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if let Some(length) = raw_string_length(rest) {
        return length;
    }
    let prefix = if rest.starts_with("b\"") || rest.starts_with("c\"") { 1 } else { 0 };
    if rest.get(prefix..).is_some_and(|text| text.starts_with('"')) {
        return quoted_length(rest, prefix + 1, '"');
    }
    if first == '\'' {
        return character_or_lifetime_length(rest);
    }
    if rest.starts_with("b'") {
        return quoted_length(rest, 2, '\'');
    }
    if first.is_alphanumeric() || first == '_' {
        let ends = |character: char| !character.is_alphanumeric() && character != '_';
        return rest.find(ends).unwrap_or(rest.len());
    }
    if rest.starts_with("::") { 2 } else { first.len_utf8() }
}

/// The end of a literal whose text begins at `from`; a backslash protects the next character.
fn quoted_length(rest: &str, from: usize, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip_while(|(at, _)| *at < from) {
        if character == quote && !escaped {
            return at + 1;
        }
        escaped = character == '\\' && !escaped;
    }
    rest.len()
}

/// `'a'` and `'\n'` are characters, `'a` is a lifetime.
fn character_or_lifetime_length(rest: &str) -> usize {
    let mut characters = rest.char_indices().skip(1);
    let (second, third) = (characters.next(), characters.next());
    match (second, third) {
        (Some((_, '\\')), _) | (_, Some((_, '\''))) => quoted_length(rest, 1, '\''),
        _ => {
            let ends = |character: char| !character.is_alphanumeric() && character != '_';
            rest.get(1..).and_then(|name| name.find(ends)).map_or(rest.len(), |end| end + 1)
        }
    }
}

fn raw_string_length(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let text = body.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let found = text.find(&end).map_or(text.len(), |at| at + end.len());
    Some(rest.len() - text.len() + found)
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(text) = rest.get(at..).filter(|text| !text.is_empty()) {
        if text.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<&str> {
        shipped(source).iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let source = "a // b\n/* c /* d */ e */ \"f \\\" g\" r#\"h \" i\"# 'j' '\\'' b'k' 12 l";
        assert_eq!(texts(source), ["a", "l"]);
        assert_eq!(texts("fn a<'b>(c: &'b str) {}").last(), Some(&"}"));
    }

    #[test]
    fn a_path_is_names_and_double_colons_with_their_lines() {
        let tokens = shipped("a\nb::c");
        let lines: Vec<_> = tokens.iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(lines, [("a", 1), ("b", 2), ("::", 2), ("c", 2)]);
    }

    #[test]
    fn code_compiled_only_for_tests_is_left_out() {
        assert_eq!(texts("a; #[cfg(test)] mod tests { fn b() { c } } d"), ["a", ";", "d"]);
        assert_eq!(texts("#[cfg(test)] #[path = \"x\"] mod b; c"), ["c"]);
        assert_eq!(texts("#[cfg(all(test, unix))] use b::{c, d}; e"), ["e"]);
        assert_eq!(texts("#[cfg(not(test))] b").last(), Some(&"b"));
    }
}
