//! A type name has one meaning in a program.

use std::collections::BTreeMap;

use super::tree::{Finding, Tree, numbered};

/// Names that several types may have, with the reason.
const SHARED_NAMES: [(&str, &str); 10] = [
    ("Args", "the arguments of one command, private to its file"),
    ("Options", "the options of one backend, named with its crate"),
    ("PgDatabase", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgTransaction", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgTransactionalStore", "crates/sqlx mirrors the names of crates/postgres"),
    ("PgUserTransaction", "crates/sqlx mirrors the names of crates/postgres"),
    ("SqliteDatabase", "crates/sqlx mirrors the names of crates/sqlite"),
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
/// macros and types inside functions are indented and do not count.
fn definitions(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let shipped = numbered(text).take_while(|(_, line)| *line != "#[cfg(test)]");
    shipped.filter_map(|(number, line)| Some((number, defined(line)?)))
}

/// The name of the type that a line defines.
fn defined(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let rest = ["struct ", "enum ", "trait ", "union ", "type "]
        .iter()
        .find_map(|keyword| line.strip_prefix(keyword))?;
    rest.split(|character: char| !character.is_alphanumeric() && character != '_').next()
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
            ("crates/core/src/b.rs", "#[cfg(test)]\nmod tests {}\nstruct Stub;\n"),
            ("crates/core/src/b.rs", "impl Trait for A {\n    type Stub = u8;\n}\n"),
            ("crates/core/src/b.rs", "pub struct Args {}\n"),
            ("crates/core/src/b.rs", "struct Stubs;\n"),
        ] {
            assert_eq!(findings(&[first, (path, text)]), [""; 0], "{path}: {text}");
        }
    }
}
