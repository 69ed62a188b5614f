//! What the documents promise about the tree, held against the tree.
//!
//! `ARCHITECTURE.md` names each crate by its folder in backticks, such as `crates/core`, and a
//! source file by its path, such as `core/rules.rs`.

use super::graph::{Package, packages};
use super::tree::{Finding, Tree, is_under, numbered};

const MAP: &str = "ARCHITECTURE.md";
const INVARIANT: &str = "**Architecture Invariant";

/// The map shows every crate, so that a new one has to say what it is for.
pub(crate) fn architecture_names_every_crate(tree: &Tree) -> Vec<Finding> {
    let names = names(tree.text(MAP).unwrap_or_default());
    let named = |package: &Package| names.iter().any(|name| name.is_folder(&package.folder));
    let missing = packages(tree).into_iter().filter(|package| !named(package));
    missing
        .map(|package| Finding::file(MAP, format!("name the crate `{}`", package.folder)))
        .collect()
}

/// The map shows nothing that is not there.
pub(crate) fn architecture_names_only_what_exists(tree: &Tree) -> Vec<Finding> {
    let map = tree.text(MAP).unwrap_or_default();
    let crates: Vec<String> = packages(tree).into_iter().map(|package| package.folder).collect();
    let names = names(map);
    let gone = names.iter().filter(|name| name.is_file() || is_under(name.text, "crates"));
    let gone = gone.filter(|name| !exists(tree, name, &crates));
    let finding = |name: &Name<'_>| {
        Finding::at(MAP, name.line, format!("`{}` does not exist; correct or remove it", name.text))
    };
    gone.map(finding).collect()
}

/// An invariant that nothing checks is a wish.
pub(crate) fn architecture_invariants_name_their_rule(tree: &Tree) -> Vec<Finding> {
    let map = tree.text(MAP).unwrap_or_default();
    let mut findings = Vec::new();
    for (line, paragraph) in paragraphs(map) {
        let rules = rules_in(&paragraph);
        if paragraph.contains(INVARIANT) && rules.is_empty() {
            let what = "say which rule checks the invariant: (tidy: rule_name)";
            findings.push(Finding::at(MAP, line, what));
        }
        for rule in rules {
            if !super::RULES.iter().any(|known| known.name == rule) {
                let what = format!("there is no rule {rule}; `cargo xtask tidy --list` shows all");
                findings.push(Finding::at(MAP, line, what));
            }
        }
    }
    findings
}

/// Users read there what the next release changes for them.
pub(crate) fn changelog_has_an_unreleased_section(tree: &Tree) -> Vec<Finding> {
    let text = tree.text("CHANGELOG.md").unwrap_or_default();
    let found =
        text.lines().any(|line| ["## [Unreleased]", "## Unreleased"].contains(&line.trim()));
    missing(found, "CHANGELOG.md", "add the section ## [Unreleased]")
}

/// A contributor finds the one command that checks a change.
pub(crate) fn readme_names_the_test_command(tree: &Tree) -> Vec<Finding> {
    let found = tree.text("README.md").unwrap_or_default().contains("cargo xtask test");
    missing(found, "README.md", "say that `cargo xtask test` runs all checks")
}

fn missing(found: bool, path: &str, what: &str) -> Vec<Finding> {
    if found { Vec::new() } else { vec![Finding::file(path, what)] }
}

/// Something in backticks, and where it stands.
#[derive(Debug)]
struct Name<'a> {
    text: &'a str,
    line: usize,
    /// The folder of the crate whose section it is in.
    section: Option<&'a str>,
}

impl Name<'_> {
    fn is_folder(&self, folder: &str) -> bool {
        self.text.trim_end_matches('/') == folder
    }

    /// Whether it can only be meant as a file. A pattern is not.
    fn is_file(&self) -> bool {
        let ends = [".rs", ".md", ".toml", ".sql"];
        let pattern = self.text.contains(['*', '<', '{', ' ', '…']);
        let end = ends.iter().find(|end| self.text.ends_with(*end));
        !pattern && end.is_some_and(|end| self.text.len() > end.len())
    }
}

/// Every name in backticks outside of fenced blocks. A section ends at the next heading of its own
/// level or a higher one.
fn names(map: &str) -> Vec<Name<'_>> {
    let mut names = Vec::new();
    let mut section: Option<(usize, &str)> = None;
    let mut fenced = false;
    for (line, text) in numbered(map) {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let level = text.chars().take_while(|character| *character == '#').count();
        let heading = level > 0 && text[level..].starts_with(' ');
        let mut inside = text.split('`').skip(1).step_by(2);
        if heading {
            let folder = inside.clone().find(|name| is_under(name, "crates"));
            section = match folder {
                Some(folder) => Some((level, folder.trim_end_matches('/'))),
                None => section.filter(|(opened, _)| level > *opened),
            };
        }
        let section = section.map(|(_, folder)| folder);
        names.extend(inside.by_ref().map(|text| Name { text, line, section }));
    }
    names
}

/// A name may be a path from the root, from `crates`, from its section's crate or that crate's
/// `src`; `core/rules.rs` is short for `crates/core/src/rules.rs`. Outside of a section it may be a
/// source file of any crate.
fn exists(tree: &Tree, name: &Name<'_>, crates: &[String]) -> bool {
    let text = name.text;
    let mut places = vec![text.to_owned(), format!("crates/{text}")];
    if let Some((first, rest)) = text.split_once('/') {
        places.push(format!("crates/{first}/src/{rest}"));
    }
    for folder in crates.iter().filter(|folder| name.section.is_none_or(|own| own == **folder)) {
        places.push(format!("{folder}/{text}"));
        places.push(format!("{folder}/src/{text}"));
    }
    places.iter().any(|place| tree.has(place))
}

/// The paragraphs of a text, each with the line it begins at.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in numbered(text) {
        let empty = line.trim().is_empty();
        // Two invariants without an empty line between them are still two.
        if !empty && (!open || line.contains(INVARIANT)) {
            paragraphs.push((number, String::new()));
        }
        open = !empty;
        if let (true, Some((_, last))) = (open, paragraphs.last_mut()) {
            last.push_str(line.trim());
            last.push(' ');
        }
    }
    paragraphs
}

/// The names in `(tidy: one, another)`, with or without backticks.
fn rules_in(paragraph: &str) -> Vec<&str> {
    let lists = paragraph.split("(tidy:").skip(1).filter_map(|rest| rest.split(')').next());
    let names = lists.flat_map(|list| list.split(','));
    names.map(|name| name.trim().trim_matches('`')).filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORE: &str = "[package]\nname = \"semel-core\"\n";
    const XTASK: &str = "[package]\nname = \"xtask\"\n";

    fn tree(map: &str) -> Tree {
        Tree::of(&[
            (MAP, map),
            ("Cargo.toml", "[workspace]\n"),
            ("crates/core/Cargo.toml", CORE),
            ("crates/core/src/lib.rs", ""),
            ("crates/core/src/store/claim.rs", ""),
            ("crates/core/src/store/tests.rs", ""),
            ("crates/core/tests/exhaustive.rs", ""),
            ("xtask/Cargo.toml", XTASK),
            ("xtask/src/main.rs", ""),
        ])
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_map_that_shows_every_crate_passes() {
        let map = "# Map\n\n| `crates/core` | rules |\n\n## `xtask/`\n";
        assert_eq!(architecture_names_every_crate(&tree(map)), []);
        assert_eq!(architecture_names_only_what_exists(&tree(map)), []);
    }

    #[test]
    fn a_crate_that_the_map_does_not_show_is_found() {
        assert_eq!(
            shown(&architecture_names_every_crate(&tree("# Map\n"))),
            [
                "ARCHITECTURE.md:1: name the crate `crates/core`",
                "ARCHITECTURE.md:1: name the crate `xtask`",
            ]
        );
    }

    #[test]
    fn a_file_that_is_gone_is_found() {
        let map = "`core/lib.rs` `xtask/src/main.rs` `Cargo.toml` `*.rs`\n\
            ## `crates/core`\n\
            `tests/exhaustive.rs` `main.rs`\n\
            ## `crates/gone`\n\
            ```\n`fenced.rs`\n```\n";
        assert_eq!(
            shown(&architecture_names_only_what_exists(&tree(map))),
            [
                "ARCHITECTURE.md:3: `main.rs` does not exist; correct or remove it",
                "ARCHITECTURE.md:4: `crates/gone` does not exist; correct or remove it",
            ]
        );
    }

    #[test]
    fn an_invariant_without_a_rule_or_with_an_unknown_one_is_found() {
        let map = "**Architecture Invariant:** core is pure.\nNo clock.\n\n\
            **Architecture Invariant:** kit (tidy:\n`no_shipped_crate_depends_on_the_testkit`).\n\
            **Architecture Invariant:** more (tidy: no_such_rule).\n";
        assert_eq!(
            shown(&architecture_invariants_name_their_rule(&tree(map))),
            [
                "ARCHITECTURE.md:1: say which rule checks the invariant: (tidy: rule_name)",
                "ARCHITECTURE.md:6: there is no rule no_such_rule; \
                 `cargo xtask tidy --list` shows all",
            ]
        );
    }

    #[test]
    fn a_changelog_without_unreleased_is_found() {
        let check =
            |text| changelog_has_an_unreleased_section(&Tree::of(&[("CHANGELOG.md", text)]));
        assert_eq!(check("# Changelog\n\n## [Unreleased]\n"), []);
        assert_eq!(
            shown(&check("## 0.1.0\n")),
            ["CHANGELOG.md:1: add the section ## [Unreleased]"]
        );
    }

    #[test]
    fn a_readme_without_the_command_is_found() {
        let check = |text| readme_names_the_test_command(&Tree::of(&[("README.md", text)]));
        assert_eq!(check("Run `cargo xtask test`.\n"), []);
        assert_eq!(check("Run the tests.\n").len(), 1);
        assert_eq!(readme_names_the_test_command(&Tree::default()).len(), 1);
    }
}
