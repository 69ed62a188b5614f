//! A type name has one meaning in a program.

use std::collections::BTreeMap;

use super::tokens::{is_name, shipped};
use super::tree::{Finding, Tree};

/// The keywords before the name of a type.
const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "union", "type"];

/// Names that several types may have, with the reason.
const SHARED_NAMES: [(&str, &str); 13] = [
    ("Args", "the arguments of one command, private to its file"),
    ("BoxError", "the usual alias of a boxed error in crates that do not know each other"),
    ("Options", "the options of one backend, named with its crate"),
    ("PgDatabase", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgOperations", "crates/sqlx mirrors the names of crates/steps"),
    ("PgTransaction", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgTransactionalStore", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgUserTransaction", "crates/sqlx mirrors the names of crates/postgres"),
    ("SqliteDatabase", "crates/sqlx mirrors the names of crates/sqlite"),
    ("SqliteOperations", "crates/sqlx mirrors the names of crates/steps"),
    ("SqliteTransaction", "crates/sqlx mirrors the names of crates/sqlite"),
    ("SqliteTransactionalStore", "crates/sqlx mirrors the names of crates/sqlite"),
    ("SqliteUserTransaction", "crates/sqlx mirrors the names of crates/sqlite"),
];

/// The programs beside the product. Each has type names of its own; an example is one file.
const OTHER_PROGRAMS: [&str; 2] = ["bench", "xtask"];

/// A type name that is defined twice in the crates, or twice in another program, has two meanings.
pub(crate) fn type_names_are_unique(tree: &Tree) -> Vec<Finding> {
    let mut first: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let Some(program) = program(path) else { continue };
        for (line, name) in definitions(text) {
            let is_shared = SHARED_NAMES.iter().any(|(shared, _)| *shared == name);
            match first.get(&(program, name)) {
                Some(other) if !is_shared => {
                    let what = format!("{other} defines a type {name} too; rename one of them");
                    findings.push(Finding::at(path, line, what));
                }
                Some(_) => {}
                None => drop(first.insert((program, name), path)),
            }
        }
    }
    findings
}

/// The program whose shipped code a file belongs to; `None` for tests, examples and fuzz targets.
fn program(path: &str) -> Option<&str> {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    let (top, rest) = path.split_once('/')?;
    let is_product = top == "crates" && rest.split('/').nth(1) == Some("src");
    let is_other = OTHER_PROGRAMS.contains(&top) && rest.starts_with("src/");
    ((is_product || is_other) && !is_test).then_some(top)
}

/// The types that a file defines outside its tests, with their lines. Associated types, types of
/// macros and types inside functions or modules are within braces and do not count.
fn definitions(text: &str) -> Vec<(usize, &str)> {
    let tokens = shipped(text);
    let mut depth = 0_usize;
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" | "(" => depth += 1,
            "}" | ")" => depth = depth.saturating_sub(1),
            keyword if depth == 0 && KEYWORDS.contains(&keyword) => {
                let name = tokens.get(at + 1).filter(|name| is_name(name.text));
                found.extend(name.map(|name| (name.line, name.text)));
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        type_names_are_unique(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_of_two_types_is_found() {
        let found = findings(&[
            ("crates/core/src/a.rs", "//! A.\npub struct Seen<T>(T);\n"),
            ("crates/sqlx/src/b.rs", "//! B.\n\npub(crate) enum Seen {}\n"),
            ("crates/cli/src/c.rs", "trait Other {}\ntype Seen = u8;\n"),
        ]);
        let expected = [
            "crates/core/src/a.rs:2: crates/cli/src/c.rs defines a type Seen too; rename one of \
             them",
            "crates/sqlx/src/b.rs:3: crates/cli/src/c.rs defines a type Seen too; rename one of \
             them",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_type_below_the_tests_of_a_file_counts() {
        let below = "#[cfg(test)]\nmod tests {}\nstruct Seen;\n";
        let files = [("crates/core/src/a.rs", "struct Seen;"), ("crates/core/src/b.rs", below)];
        assert_eq!(findings(&files).len(), 1);
    }

    #[test]
    fn another_program_has_names_of_its_own() {
        let [one, two] = ["struct Load;", "pub(super) struct Load {}"];
        let product = ("crates/core/src/a.rs", one);
        assert_eq!(findings(&[product, ("bench/src/a.rs", two)]), [""; 0]);
        assert_eq!(findings(&[("bench/src/a.rs", one), ("bench/src/b.rs", two)]).len(), 1);
        let examples = [("examples/src/a.rs", one), ("examples/src/b.rs", two)];
        assert_eq!(findings(&examples), [""; 0]);
    }

    #[test]
    fn tests_associated_types_and_listed_names_do_not_count() {
        let first = ("crates/core/src/a.rs", "struct Stub;\nstruct Args;\n");
        for (path, text) in [
            ("crates/core/tests/it/b.rs", "struct Stub;\n"),
            ("crates/core/src/b/tests.rs", "struct Stub;\n"),
            ("crates/core/src/b.rs", "#[cfg(test)]\nmod tests {\n    struct Stub;\n}\n"),
            ("crates/core/src/b.rs", "#[cfg(test)]\nstruct Stub;\n"),
            ("crates/core/src/b.rs", "impl Trait for A {\n    type Stub = u8;\n}\n"),
            ("crates/core/src/b.rs", "pub struct Args {}\n"),
            ("crates/core/src/b.rs", "struct Stubs;\n"),
        ] {
            assert_eq!(findings(&[first, (path, text)]), [""; 0], "{path}: {text}");
        }
    }
}
