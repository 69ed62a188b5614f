//! What every manifest has to say, and the one list of foreign crates.

use toml::Value;

use super::graph::{Package, packages};
use super::manifest::{self, Dependency, Kind};
use super::tree::{Finding, Tree, numbered};

const REASONS: &str = "docs/dependencies.md";

/// Workspaces of their own: the root's manifest says why.
const OWN_WORKSPACES: [&str; 2] = ["crates/sqlx", "fuzz"];

/// That of them which users get; its dependencies are listed with all others.
const SHIPPED_APART: &str = "crates/sqlx/Cargo.toml";

/// Lints and licence are decided once, for all crates.
pub(crate) fn crates_take_lints_and_licence_from_the_workspace(tree: &Tree) -> Vec<Finding> {
    const WANTED: [(&[&str], &str); 2] = [
        (&["lints", "workspace"], "add [lints] workspace = true"),
        (&["package", "license", "workspace"], "add license.workspace = true to [package]"),
    ];
    let mut findings = Vec::new();
    for package in members(tree) {
        let text = tree.text(&package.manifest()).unwrap_or_default();
        for (path, instead) in WANTED {
            if manifest::value(text, path) != Some(Value::Boolean(true)) {
                findings.push(Finding::file(&package.manifest(), instead));
            }
        }
    }
    findings.extend(lints_apart(tree));
    findings
}

/// A workspace of its own cannot take the lints from this one: it has to repeat them.
fn lints_apart(tree: &Tree) -> Vec<Finding> {
    let (root, Some(apart)) = (tree.text("Cargo.toml"), tree.text(SHIPPED_APART)) else {
        return Vec::new();
    };
    let differs = |table: &&str| {
        let ours = manifest::value(root.unwrap_or_default(), &["workspace", "lints", table]);
        ours != manifest::value(apart, &["lints", table])
    };
    let what = |table| format!("make [lints.{table}] the same as the root's [workspace.lints]");
    let tables = ["rust", "clippy"].into_iter().filter(differs);
    tables.map(|table| Finding::file(SHIPPED_APART, what(table))).collect()
}

/// What is built is what the registry has, byte for byte: no git repository, no other registry, and
/// nothing without a checksum.
pub(crate) fn locked_packages_come_from_the_registry(tree: &Tree) -> Vec<Finding> {
    const REGISTRY: &str = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";

    let mut findings = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.ends_with("Cargo.lock")) {
        let mut has_checksum = true;
        for (number, line) in numbered(text) {
            if line == "[[package]]" {
                has_checksum = true;
            } else if line == REGISTRY {
                has_checksum = false;
            } else if line.starts_with("source = ") {
                findings.push(Finding::at(path, number, "not from the registry"));
            } else if line.starts_with("checksum = ") {
                has_checksum = true;
            } else if line.is_empty() && !has_checksum {
                findings.push(Finding::at(path, number, "the package above has no checksum"));
            }
        }
    }
    findings
}

/// A foreign crate has one version and one place where it is listed, so that its reason can be too.
pub(crate) fn dependencies_come_from_the_workspace(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in members(tree) {
        let own = package.dependencies.iter().filter(|found| !found.inherited && !found.local);
        findings.extend(own.map(|Dependency { name, line, .. }| {
            let what = format!(
                "list {name} in the root's [workspace.dependencies] and write \
                 {name}.workspace = true"
            );
            Finding::at(&package.manifest(), *line, what)
        }));
    }
    findings
}

/// Every foreign crate has one line that says why it and not its rival, and no line outlives it.
pub(crate) fn every_dependency_has_its_reason(tree: &Tree) -> Vec<Finding> {
    let mut foreign = listed(tree, "Cargo.toml", |kind| kind == Kind::Workspace);
    // Listed once, wherever it is used.
    for found in listed(tree, SHIPPED_APART, |kind| kind != Kind::Dev) {
        if foreign.iter().all(|(_, known)| known.name != found.1.name) {
            foreign.push(found);
        }
    }
    let reasons = reasons(tree.text(REASONS).unwrap_or_default());
    let mut findings = Vec::new();
    for (manifest, Dependency { name, line, .. }) in &foreign {
        let count = reasons.iter().filter(|(_, reason)| reason == name).count();
        if count != 1 {
            let what =
                format!("{REASONS} has {count} lines that begin \"- `{name}`: \"; write one");
            findings.push(Finding::at(manifest, *line, what));
        }
    }
    for (line, name) in reasons {
        if !foreign.iter().any(|(_, dependency)| dependency.name == name) {
            let what = format!("{name} is not in [workspace.dependencies]; remove the line");
            findings.push(Finding::at(REASONS, line, what));
        }
    }
    findings
}

/// The foreign crates of some kinds that a manifest lists.
fn listed(
    tree: &Tree,
    path: &'static str,
    takes: impl Fn(Kind) -> bool,
) -> Vec<(&'static str, Dependency)> {
    let all = manifest::dependencies(tree.text(path).unwrap_or_default());
    let foreign = all.into_iter().filter(|found| !found.local && takes(found.kind));
    foreign.map(|found| (path, found)).collect()
}

fn members(tree: &Tree) -> impl Iterator<Item = Package> {
    packages(tree).into_iter().filter(|package| !OWN_WORKSPACES.contains(&&*package.folder))
}

/// The lines of the form "- `name`: a sentence".
fn reasons(text: &str) -> Vec<(usize, &str)> {
    let named = numbered(text).filter_map(|(number, line)| {
        let (name, reason) = line.strip_prefix("- `")?.split_once("`: ")?;
        (!reason.trim().is_empty()).then_some((number, name))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "[package]\nname = \"a\"\nlicense.workspace = true\n[lints]\nworkspace = true\n";

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_crate_without_lints_or_licence_is_found() {
        let bad = "[package]\nname = \"b\"\nlicense = \"MIT\"\n";
        let tree = Tree::of(&[("crates/a/Cargo.toml", GOOD), ("crates/b/Cargo.toml", bad)]);
        assert_eq!(
            shown(&crates_take_lints_and_licence_from_the_workspace(&tree)),
            [
                "crates/b/Cargo.toml:1: add [lints] workspace = true",
                "crates/b/Cargo.toml:1: add license.workspace = true to [package]",
            ]
        );
    }

    #[test]
    fn lints_that_a_workspace_of_its_own_does_not_have_are_found() {
        let root = "[workspace.lints.rust]\na = 1\n\n[workspace.lints.clippy]\nb = 2\n";
        let apart = "[lints.rust]\na = 1\n[lints.clippy]\nb = 3\n";
        let tree = Tree::of(&[("Cargo.toml", root), (SHIPPED_APART, apart)]);
        assert_eq!(
            shown(&lints_apart(&tree)),
            ["crates/sqlx/Cargo.toml:1: make [lints.clippy] the same as the root's \
              [workspace.lints]"]
        );
    }

    #[test]
    fn a_package_from_elsewhere_or_without_a_checksum_is_found() {
        let package = |source: &str| format!("[[package]]\nname = \"a\"\n{source}\n");
        let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
        let good = package(&format!("{registry}checksum = \"ab\"\n")) + &package("");
        let bare = package(registry);
        let git = package("source = \"git+https://example.com/a\"\n");
        let other = package("source = \"registry+https://example.com/index\"\n");
        let all = [good, bare, git, other].concat();
        let tree = Tree::of(&[("fuzz/Cargo.lock", &all)]);
        assert_eq!(
            shown(&locked_packages_come_from_the_registry(&tree)),
            [
                "fuzz/Cargo.lock:12: the package above has no checksum",
                "fuzz/Cargo.lock:15: not from the registry",
                "fuzz/Cargo.lock:19: not from the registry",
            ]
        );
    }

    #[test]
    fn a_foreign_crate_listed_by_a_member_is_found() {
        let member = "[package]\nname = \"b\"\n[dependencies]\nsfv = \"0.16\"\n\
            bytes.workspace = true\nc = { path = \"../c\" }\n";
        let tree = Tree::of(&[("crates/a/Cargo.toml", member), ("fuzz/Cargo.toml", member)]);
        assert_eq!(
            shown(&dependencies_come_from_the_workspace(&tree)),
            ["crates/a/Cargo.toml:4: list sfv in the root's [workspace.dependencies] and write \
              sfv.workspace = true"]
        );
    }

    #[test]
    fn a_crate_without_reason_and_a_reason_without_crate_are_found() {
        let root = "[workspace.dependencies]\nsemel = { path = \"crates/semel\" }\n\
            sfv = \"0.16\"\nsha2 = \"0.11\"\n";
        let reasons = "# Why\n\n- `sha2`: pure Rust.\n- `blake3`: is gone.\n";
        let apart = "[dependencies]\nsha2 = \"0.11\"\nsqlx = \"0.9\"\n\
            [dev-dependencies]\ntempfile = \"3\"\n";
        let tree = Tree::of(&[("Cargo.toml", root), (SHIPPED_APART, apart), (REASONS, reasons)]);
        assert_eq!(
            shown(&every_dependency_has_its_reason(&tree)),
            [
                "Cargo.toml:3: docs/dependencies.md has 0 lines that begin \"- `sfv`: \"; \
                 write one",
                "crates/sqlx/Cargo.toml:3: docs/dependencies.md has 0 lines that begin \
                 \"- `sqlx`: \"; write one",
                "docs/dependencies.md:4: blake3 is not in [workspace.dependencies]; \
                 remove the line",
            ]
        );
    }
}
