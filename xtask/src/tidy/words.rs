//! Words that are neither terms of the field nor plain technical English.
//!
//! The words are put together from pieces, so that this file does not match itself.

use super::tree::{Finding, Tree, is_under, numbered};

/// Each refused word, and what to write instead.
const WORDS: [(&str, &str); 21] = [
    (concat!("to", "ld"), "name who sends what: gets, receives, learns, returns"),
    (concat!("no", "body"), "name the missing subject: no client, no reader, unused"),
    (concat!("who", "ever"), "name the subject: the client, a waiter, the owner"),
    (concat!("some", "body"), "name the subject: another owner, another process"),
    (concat!("a", "new"), "write again, or restart"),
    (concat!("he", "ed"), "write apply, or obey"),
    (concat!("he", "eds"), "write applies, or obeys"),
    (concat!("err", "and"), "write request, task or context"),
    (concat!("pati", "ence"), "write timeout, and of what"),
    (concat!("le", "st"), "write so that … not"),
    (concat!("err", "ands"), "write requests or tasks"),
    (concat!("fa", "te"), "write outcome or result"),
    (concat!("mo", "od"), "write behaviour or condition"),
    (concat!("unst", "eady"), "write flaky"),
    (concat!("sel", "dom"), "write throttled, or how often"),
    (concat!("stra", "nger"), "write another process, or an unauthenticated client"),
    (concat!("stra", "ngers"), "write other processes, or unauthenticated clients"),
    (concat!("appe", "tite"), "write budget"),
    (concat!("nu", "dge"), "write wake or notify"),
    (concat!("rou", "se"), "write wake"),
    (concat!("bel", "ief"), "write cache lifetime or recheck interval"),
];

/// History, measured runs, generated lists of hashes, licences and random inputs.
const EXEMPT_FILES: [&str; 3] = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
const EXEMPT_FOLDERS: [&str; 2] = ["bench/runs", "fuzz/seeds"];
const EXEMPT_ENDS: [&str; 3] = [".lock", ".sum", "package-lock.json"];

/// A name is a term that an engineer of the field searches for, and a sentence names its subject.
pub(crate) fn words_are_plain(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| !is_exempt(path)) {
        let in_path = parts(path).filter_map(refused);
        findings.extend(in_path.map(|what| Finding::file(path, what)));
        for (number, line) in numbered(text) {
            let found = parts(line).filter_map(refused);
            findings.extend(found.map(|what| Finding::at(path, number, what)));
        }
    }
    findings
}

fn is_exempt(path: &str) -> bool {
    EXEMPT_FILES.contains(&path)
        || EXEMPT_FOLDERS.iter().any(|folder| is_under(path, folder))
        || EXEMPT_ENDS.iter().any(|end| path.ends_with(end))
}

fn refused(part: &str) -> Option<String> {
    let (word, instead) = WORDS.iter().find(|(word, _)| part.eq_ignore_ascii_case(word))?;
    Some(format!("\"{word}\" is refused; {instead}"))
}

/// The words of a line. An identifier is cut at its underscores and before its capitals.
fn parts(line: &str) -> impl Iterator<Item = &str> {
    line.split(|character: char| !character.is_alphabetic()).flat_map(camel_parts)
}

/// `UntilStop` is `Until` and `Stop`, `HTTPServer` is `HTTP` and `Server`, `STOP` is one.
fn camel_parts(word: &str) -> impl Iterator<Item = &str> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let (part, after) = rest.split_at(camel_end(rest));
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

/// Where the first part of a word ends.
fn camel_end(word: &str) -> usize {
    let mut characters = word.char_indices().peekable();
    let mut before: Option<char> = None;
    while let Some((at, this)) = characters.next() {
        let next_is_small = characters.peek().is_some_and(|(_, next)| next.is_lowercase());
        let starts_part = match before {
            Some(before) if before.is_lowercase() => this.is_uppercase(),
            Some(_) => this.is_uppercase() && next_is_small,
            None => false,
        };
        if starts_part {
            return at;
        }
        before = Some(this);
    }
    word.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refused word, spelled so that this file stays clean.
    const WORD: &str = concat!("no", "body");

    fn capital(word: &str) -> String {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    }

    fn findings(path: &str, text: &str) -> usize {
        words_are_plain(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn identifiers_are_cut_into_words() {
        let cut = |line| parts(line).collect::<Vec<_>>();
        assert_eq!(cut("fn until_stop(UntilStop)"), ["fn", "until", "stop", "Until", "Stop"]);
        assert_eq!(cut("STOP_MAX HTTPServer h2 É"), ["STOP", "MAX", "HTTP", "Server", "h", "É"]);
        assert_eq!(cut(" -- 12 "), [""; 0]);
    }

    #[test]
    fn a_refused_word_is_found_in_identifiers_comments_and_texts() {
        let capital = capital(WORD);
        let lines = [
            format!("fn {WORD}_waits() {{}}"),
            format!("struct {capital}Waits;"),
            format!("enum Waits{capital} {{}}"),
            format!("const {}: u8 = 0;", WORD.to_uppercase()),
            format!("// {capital} waits."),
            format!("\"{WORD}'s fault\""),
        ];
        for line in &lines {
            assert_eq!(findings("crates/core/src/a.rs", line), 1, "{line}");
        }
        assert_eq!(findings("docs/a.md", &lines.join("\n")), lines.len());
    }

    #[test]
    fn a_refused_word_is_found_in_the_name_of_a_file() {
        assert_eq!(findings(&format!("crates/core/src/{WORD}.rs"), ""), 1);
    }

    #[test]
    fn longer_words_that_contain_a_refused_one_pass() {
        assert_eq!(findings("a.rs", "untold renewed smallest anewhere indeed Heedless"), 0);
    }

    #[test]
    fn history_runs_and_locked_versions_are_exempt() {
        for path in ["CHANGELOG.md", "bench/runs/a.json", "Cargo.lock", "a/package-lock.json"] {
            assert_eq!(findings(path, WORD), 0, "{path}");
        }
    }
}
