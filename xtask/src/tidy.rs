//! `cargo xtask tidy`: the rules that hold the tree together.
//!
//! A rule is a function from the tree to the places where it does not hold. Its name is a sentence,
//! and `ARCHITECTURE.md` refers to it by that name. The rules run as a test too, so that an
//! invariant of the architecture is a test like any other.

mod crates;
mod cycles;
mod documents;
pub(crate) mod file_list;
mod graph;
pub(crate) mod manifest;
mod text;
mod tokens;
mod tree;
mod type_names;
mod words;

use std::path::Path;

use anyhow::bail;

use crate::run::bad;
use tree::{Finding, Tree};

/// One rule and its name.
#[derive(Debug)]
struct Rule {
    name: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

macro_rules! rules {
    ($($module:ident::$name:ident,)*) => {
        &[$(Rule { name: stringify!($name), check: $module::$name }),*]
    };
}

const RULES: &[Rule] = rules![
    graph::core_depends_on_no_runtime_and_no_io,
    graph::no_shipped_crate_depends_on_the_testkit,
    graph::backends_do_not_depend_on_each_other,
    cycles::modules_have_no_cycles,
    crates::crates_take_lints_and_licence_from_the_workspace,
    crates::dependencies_come_from_the_workspace,
    crates::every_dependency_has_its_reason,
    crates::locked_packages_come_from_the_registry,
    text::lines_have_at_most_100_columns,
    text::source_files_have_at_most_600_lines,
    text::source_files_begin_with_their_purpose,
    text::nothing_is_left_to_do,
    text::no_test_is_ignored,
    text::test_names_do_not_begin_with_test,
    text::no_machine_path_is_tracked,
    type_names::type_names_are_unique,
    words::words_are_plain,
    file_list::file_list_is_current,
    documents::architecture_names_every_crate,
    documents::architecture_names_only_what_exists,
    documents::architecture_invariants_name_their_rule,
    documents::changelog_has_an_unreleased_section,
    documents::readme_names_the_test_command,
];

/// Checks every rule and shows every place where one does not hold.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for (rule, finding) in &findings {
        eprintln!("{finding} {}", bad(&format!("[{rule}]")));
    }
    match findings.len() {
        0 => println!("tidy: {} rules hold for {} files", RULES.len(), tree.files().count()),
        1 => bail!("tidy found one place to correct"),
        count => bail!("tidy found {count} places to correct"),
    }
    Ok(())
}

/// Shows the names of the rules.
pub(crate) fn list() {
    RULES.iter().for_each(|rule| println!("{}", rule.name));
}

fn check(tree: &Tree) -> Vec<(&'static str, Finding)> {
    let named = |rule: &Rule| {
        let name = rule.name;
        (rule.check)(tree).into_iter().map(move |finding| (name, finding))
    };
    RULES.iter().flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let tree = Tree::read(&crate::root()).unwrap();
        let found: Vec<String> =
            check(&tree).iter().map(|(rule, finding)| format!("{finding} [{rule}]")).collect();
        assert!(found.is_empty(), "\n{}", found.join("\n"));
    }

    #[test]
    fn the_tree_that_is_checked_is_this_repository() {
        let tree = Tree::read(&crate::root()).unwrap();
        assert!(tree.text("xtask/src/tidy.rs").is_some());
        assert!(graph::packages(&tree).iter().any(|package| package.name == "semel-core"));
    }
}
