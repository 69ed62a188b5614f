//! What a line of a file may look like.
//!
//! Patterns are put together from pieces, so that this file does not match itself.

use super::tree::{Finding, Tree, is_under, numbered};

const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 600;

/// A line fits beside another one on a screen. An address in a comment may be longer.
pub(crate) fn lines_have_at_most_100_columns(tree: &Tree) -> Vec<Finding> {
    in_lines(tree.rust(), |line| {
        let columns = line.chars().count();
        let address = line.trim_start().starts_with("//") && line.contains("://");
        (columns > COLUMNS_MAX && !address)
            .then(|| format!("{columns} columns; break the line at {COLUMNS_MAX}"))
    })
}

/// A file has one subject. Tests may be longer, because their cases are all alike.
pub(crate) fn source_files_have_at_most_600_lines(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter(|(path, _)| !in_folder(path, "tests"));
    let long = sources.filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| {
            let what =
                format!("{lines} lines; cut the file along its subjects, {LINES_MAX} at most");
            Finding::at(path, lines, what)
        })
    });
    long.collect()
}

/// The reader of a file learns first what it is for.
pub(crate) fn source_files_begin_with_their_purpose(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter(|(path, _)| in_folder(path, "src"));
    let silent = sources.filter(|(_, text)| !text.starts_with("//!"));
    silent.map(|(path, _)| Finding::file(path, "begin with //! and say what it is for")).collect()
}

/// What is in the tree is finished. What is not done yet is an issue, not a comment.
pub(crate) fn nothing_is_left_to_do(tree: &Tree) -> Vec<Finding> {
    const WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    const MACROS: [&str; 2] = [concat!("to", "do!"), concat!("db", "g!")];
    const CODE: [&str; 7] = [".rs", ".toml", ".sql", ".sh", ".html", ".css", ".js"];
    let code = tree.files().filter(|(path, _)| CODE.iter().any(|end| path.ends_with(end)));
    in_lines(code, |line| {
        let word = WORDS.into_iter().find(|word| has_word(line, word));
        let found = word.or_else(|| MACROS.into_iter().find(|name| has_word(line, name)))?;
        Some(format!("{found} is left over; finish it or remove it"))
    })
}

/// A test that does not run proves nothing; neither does an example that is not compiled.
pub(crate) fn no_test_is_ignored(tree: &Tree) -> Vec<Finding> {
    const IGNORED: &str = concat!("#[", "ignore");
    in_lines(tree.rust(), |line| {
        let line = line.trim();
        let by_condition = line.contains("cfg_attr(") && line.contains(concat!("ignore", ")]"));
        if line.contains(IGNORED) || by_condition {
            Some("make it pass, give it a short edition, or remove it".to_owned())
        } else if fence_words(line).any(|word| word == "ignore") {
            Some("let the example run, or mark it text".to_owned())
        } else {
            None
        }
    })
}

/// The name of a test is a sentence that is true when it passes.
pub(crate) fn test_names_do_not_begin_with_test(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let mut marked = false;
        for (number, line) in numbered(text) {
            let line = line.trim();
            if is_test_attribute(line) {
                marked = true;
            } else if let Some(name) = function_name(line) {
                if marked && name.starts_with("test_") {
                    let what = format!("{name}: name the test by the sentence it proves");
                    findings.push(Finding::at(path, number, what));
                }
                marked = false;
            }
        }
    }
    findings
}

/// A path of one machine means nothing on another, and tells about its owner.
pub(crate) fn no_machine_path_is_tracked(tree: &Tree) -> Vec<Finding> {
    const PLACES: [&str; 3] = [concat!("/wor", "k/"), concat!("/roo", "t/"), concat!("/hom", "e/")];
    in_lines(tree.files(), |line| {
        let place = PLACES.into_iter().find(|place| line.contains(place))?;
        Some(format!("a path of one machine ({place}…); write it from the repository's root"))
    })
}

fn in_lines<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)>,
    check: impl Fn(&str) -> Option<String>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in files {
        for (number, line) in numbered(text) {
            findings.extend(check(line).map(|what| Finding::at(path, number, what)));
        }
    }
    findings
}

fn in_folder(path: &str, folder: &str) -> bool {
    is_under(path, folder) || path.contains(&format!("/{folder}/"))
}

/// Whether the word stands alone, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let letter = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let open = word.ends_with('!') || !after.is_some_and(letter);
        open && !before.is_some_and(letter)
    })
}

/// `#[test]`, or an attribute of that name from a crate, with or without arguments.
fn is_test_attribute(line: &str) -> bool {
    let Some(inside) = line.strip_prefix("#[") else { return false };
    let path = inside.split(['(', ']']).next().unwrap_or_default();
    path.rsplit("::").next() == Some("test")
}

/// The words after the fence that opens an example, such as `rust` and `no_run`.
fn fence_words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split_once("```").map_or("", |(_, words)| words);
    words.split(',').map(str::trim)
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["pub", "async", "const", "unsafe"];
    let opening = before.split_whitespace().all(|word| words.contains(&word));
    let opening = opening || before.trim_end().ends_with(')');
    opening.then(|| after.split(['(', '<']).next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_long_line_is_found_and_a_long_address_is_not() {
        let long = "x".repeat(101);
        let text =
            format!("{}\n{long}\n// see https://{long}\nlet a = \"https://{long}\";\n", &long[1..]);
        let findings = lines_have_at_most_100_columns(&Tree::of(&[("a.rs", &text)]));
        assert_eq!(
            lines(&findings),
            [
                "a.rs:2: 101 columns; break the line at 100",
                "a.rs:4: 120 columns; break the line at 100"
            ]
        );
    }

    #[test]
    fn columns_are_characters_and_not_bytes() {
        let text = "é".repeat(100);
        assert_eq!(lines_have_at_most_100_columns(&Tree::of(&[("a.rs", &text)])), []);
    }

    #[test]
    fn a_long_file_is_found_outside_of_tests() {
        let text = "\n".repeat(601);
        let tree = Tree::of(&[
            ("crates/a/src/long.rs", &text),
            ("crates/a/tests/long.rs", &text),
            ("crates/a/src/short.rs", &text[1..]),
        ]);
        let findings = lines(&source_files_have_at_most_600_lines(&tree));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/a/src/long.rs:601: 601 lines"), "{findings:?}");
    }

    #[test]
    fn a_source_file_without_its_purpose_is_found() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "//! Good.\n"),
            ("crates/a/src/bad.rs", "\n//! Too late.\n"),
            ("crates/a/tests/it.rs", "fn main() {}\n"),
        ]);
        let findings = source_files_begin_with_their_purpose(&tree);
        assert_eq!(
            lines(&findings),
            ["crates/a/src/bad.rs:1: begin with //! and say what it is for"]
        );
    }

    #[test]
    fn leftovers_are_found_as_words() {
        let bad = [
            concat!("// TO", "DO: later"),
            concat!("// FIX", "ME"),
            concat!("// XX", "X"),
            concat!("to", "do!()"),
            concat!("std::db", "g!(x)"),
        ];
        for line in bad {
            assert_eq!(nothing_is_left_to_do(&Tree::of(&[("a.rs", line)])).len(), 1, "{line}");
            assert_eq!(nothing_is_left_to_do(&Tree::of(&[("a.md", line)])).len(), 0, "{line}");
        }
        for line in
            [concat!("let name = \"XX", "XX\";"), "todo = \"deny\"", concat!("MASTO", "DON")]
        {
            assert_eq!(nothing_is_left_to_do(&Tree::of(&[("a.toml", line)])), [], "{line}");
        }
    }

    #[test]
    fn an_ignored_test_or_example_is_found() {
        let bad = [
            concat!("#[", "ignore]"),
            concat!("    #[", "ignore = \"slow\"]"),
            concat!("#[cfg_attr(miri, ", "ignore", ")]"),
            "/// ```ignore",
            "//! ```rust,ignore",
        ];
        for line in bad {
            assert_eq!(no_test_is_ignored(&Tree::of(&[("a.rs", line)])).len(), 1, "{line}");
        }
        assert_eq!(no_test_is_ignored(&Tree::of(&[("a.rs", "let ignored = true;")])), []);
    }

    #[test]
    fn a_test_named_test_is_found_and_a_helper_is_not() {
        let text = "#[tokio::test(flavor = \"multi_thread\")]\n\
            #[cfg(unix)]\n\
            async fn test_claim() {}\n\
            fn test_store() -> Store {}\n\
            #[test]\n\
            fn tests_are_sentences() {}\n";
        let findings = test_names_do_not_begin_with_test(&Tree::of(&[("a.rs", text)]));
        assert_eq!(
            lines(&findings),
            ["a.rs:3: test_claim: name the test by the sentence it proves"]
        );
    }

    #[test]
    fn a_path_of_one_machine_is_found_in_any_file() {
        let text = format!("good: docs/guide\nbad: {}me/notes\n", concat!("/hom", "e/"));
        let findings = no_machine_path_is_tracked(&Tree::of(&[("docs/a.md", &text)]));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].to_string().starts_with("docs/a.md:2: a path of one machine"));
    }
}
