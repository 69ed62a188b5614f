//! What may depend on what.
//!
//! The graph is read from our manifests and `Cargo.lock`, so that no rule starts cargo or needs the
//! network. It errs on the strict side: an optional dependency counts, and so does every platform
//! and every feature that any crate of the workspace switches on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::manifest::{self, Dependency, Kind};
use super::tree::{Finding, Tree, is_under};

const PURE: &str = "semel-core";
const KITS: [&str; 2] = ["semel-conformance", "semel-testkit"];
const IMPURE: [&str; 5] = ["tokio", "mio", "hyper", "http", "rusqlite"];
const BACKENDS: [&str; 5] =
    ["semel-sqlite", "semel-postgres", "semel-dynamodb", "semel-redis", "semel-sqlx"];
const NOT_SHIPPED: [&str; 5] = ["crates/testkit", "xtask", "bench", "examples", "fuzz"];

/// Core is a function of its inputs: no runtime, no socket, no database, not even by way of others.
pub(crate) fn core_depends_on_no_runtime_and_no_io(tree: &Tree) -> Vec<Finding> {
    let graph = Graph::read(tree);
    if !graph.packages.iter().any(|package| package.name == PURE) {
        return vec![Finding::file("Cargo.toml", format!("there is no crate {PURE} to check"))];
    }
    graph.forbid(PURE, &IMPURE, "core is pure; put this into the crate that drives it")
}

/// The kits are for tests; their dependencies must not reach a user's binary.
pub(crate) fn no_shipped_crate_depends_on_the_testkit(tree: &Tree) -> Vec<Finding> {
    let graph = Graph::read(tree);
    let shipped = graph.packages.iter().filter(|package| package.is_shipped());
    let check = |package: &Package| {
        let others: Vec<&str> = KITS.into_iter().filter(|kit| *kit != package.name).collect();
        graph.forbid(&package.name, &others, "move the kit to [dev-dependencies]")
    };
    shipped.flat_map(check).collect()
}

/// A backend isolates its driver: who wants one of them must not have to build another.
pub(crate) fn backends_do_not_depend_on_each_other(tree: &Tree) -> Vec<Finding> {
    let graph = Graph::read(tree);
    let check = |backend: &&str| {
        let others: Vec<&str> = BACKENDS.into_iter().filter(|other| other != backend).collect();
        graph.forbid(backend, &others, "move what they share to semel-core")
    };
    BACKENDS.iter().flat_map(check).collect()
}

/// One crate of this repository.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// From the root, without a `/` at its end.
    pub(crate) folder: String,
    pub(crate) dependencies: Vec<Dependency>,
}

impl Package {
    /// Where its manifest is.
    pub(crate) fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// Whether users get it.
    fn is_shipped(&self) -> bool {
        let inside = |folder: &&str| self.folder == **folder || is_under(&self.folder, folder);
        !NOT_SHIPPED.iter().any(inside)
    }
}

/// Every crate of this repository.
pub(crate) fn packages(tree: &Tree) -> Vec<Package> {
    let manifests = tree.files().filter_map(|(path, text)| {
        let folder = path.strip_suffix("/Cargo.toml")?.to_owned();
        let name = manifest::value(text, &["package", "name"])?.as_str()?.to_owned();
        Some(Package { name, folder, dependencies: manifest::dependencies(text) })
    });
    manifests.collect()
}

#[derive(Debug)]
struct Graph {
    packages: Vec<Package>,
    /// Names to names: from manifests for our crates, from the lock file for all others.
    edges: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn read(tree: &Tree) -> Self {
        let shared = manifest::dependencies(tree.text("Cargo.toml").unwrap_or_default());
        let locked = manifest::locked(tree.text("Cargo.lock").unwrap_or_default());
        let packages = packages(tree);
        let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, dependencies) in locked {
            // Two versions of one crate become one node: either of them counts.
            edges.entry(name).or_default().extend(dependencies);
        }
        for package in &packages {
            let names =
                package.dependencies.iter().filter(|dependency| dependency.kind != Kind::Dev);
            let names = names.map(|dependency| real_name(dependency, &shared)).collect();
            edges.insert(package.name.clone(), names);
        }
        Self { packages, edges }
    }

    /// One finding for each forbidden crate that `from` reaches, with the way there.
    fn forbid(&self, from: &str, forbidden: &[&str], instead: &str) -> Vec<Finding> {
        let Some(package) = self.packages.iter().find(|package| package.name == from) else {
            return Vec::new();
        };
        let ways = forbidden.iter().filter_map(|goal| self.way(from, goal));
        let finding = |way: Vec<&str>| {
            let first = way.get(1).copied().unwrap_or_default();
            let named = package.dependencies.iter().filter(|found| found.kind != Kind::Dev);
            let mut named = named.filter(|found| found.name == first);
            let line = named.next().map_or(1, |dependency| dependency.line);
            Finding::at(&package.manifest(), line, format!("{}: {instead}", way.join(" -> ")))
        };
        ways.map(finding).collect()
    }

    /// The shortest way from one crate to another, both included.
    fn way<'a>(&'a self, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
        let mut seen = BTreeSet::from([from]);
        let mut ways = VecDeque::from([vec![from]]);
        while let Some(way) = ways.pop_front() {
            let last = way.last().copied()?;
            if last == to {
                return Some(way);
            }
            for next in self.edges.get(last).into_iter().flatten() {
                if seen.insert(next) {
                    let mut longer = way.clone();
                    longer.push(next);
                    ways.push_back(longer);
                }
            }
        }
        None
    }
}

/// The package behind a dependency, which may be renamed here or in the workspace's list.
fn real_name(dependency: &Dependency, shared: &[Dependency]) -> String {
    let listed = shared.iter().find(|other| dependency.inherited && other.name == dependency.name);
    let package = dependency.package.as_ref().or_else(|| listed.and_then(|it| it.package.as_ref()));
    package.unwrap_or(&dependency.name).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"helper\"\ndependencies = [\n \"tokio\",\n]\n";

    fn manifest(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_runtime_behind_a_harmless_crate_is_found_in_core() {
        let core = manifest("semel-core", "[dependencies]\nbytes = \"1\"\nhelper = \"1\"\n");
        let tree = Tree::of(&[("crates/core/Cargo.toml", &core), ("Cargo.lock", LOCK)]);
        assert_eq!(
            shown(&core_depends_on_no_runtime_and_no_io(&tree)),
            ["crates/core/Cargo.toml:5: semel-core -> helper -> tokio: \
              core is pure; put this into the crate that drives it"]
        );
    }

    #[test]
    fn a_tree_without_core_does_not_pass_unseen() {
        assert_eq!(core_depends_on_no_runtime_and_no_io(&Tree::default()).len(), 1);
    }

    #[test]
    fn a_renamed_runtime_is_found_in_core() {
        let core = manifest("semel-core", "[dependencies]\nrt.workspace = true\n");
        let root = "[workspace.dependencies]\nrt = { package = \"tokio\", version = \"1\" }\n";
        let tree = Tree::of(&[("crates/core/Cargo.toml", &core), ("Cargo.toml", root)]);
        assert_eq!(core_depends_on_no_runtime_and_no_io(&tree).len(), 1);
    }

    #[test]
    fn a_runtime_in_the_tests_of_core_is_allowed() {
        let core = manifest("semel-core", "[dev-dependencies]\nhelper = \"1\"\n");
        let tree = Tree::of(&[("crates/core/Cargo.toml", &core), ("Cargo.lock", LOCK)]);
        assert_eq!(core_depends_on_no_runtime_and_no_io(&tree), []);
    }

    #[test]
    fn the_testkit_is_for_tests_and_for_what_is_not_shipped() {
        let normal = "[dependencies]\nsemel-testkit.workspace = true\n";
        let dev = "[dev-dependencies]\nsemel-testkit.workspace = true\n";
        let check = |folder: &str, list: &str| {
            let path = format!("{folder}/Cargo.toml");
            let tree = Tree::of(&[(&path, &manifest("some", list))]);
            no_shipped_crate_depends_on_the_testkit(&tree).len()
        };
        assert_eq!(check("crates/sqlite", normal), 1);
        assert_eq!(check("crates/sqlite", dev), 0);
        assert_eq!(check("bench", normal), 0);
        assert_eq!(check("examples/checkout", normal), 0);
    }

    #[test]
    fn a_backend_that_needs_another_is_found() {
        let redis = manifest("semel-redis", "[dependencies]\nsemel-sqlite.workspace = true\n");
        let sqlite = manifest("semel-sqlite", "");
        let tree =
            Tree::of(&[("crates/redis/Cargo.toml", &redis), ("crates/sqlite/Cargo.toml", &sqlite)]);
        assert_eq!(
            shown(&backends_do_not_depend_on_each_other(&tree)),
            ["crates/redis/Cargo.toml:4: semel-redis -> semel-sqlite: \
              move what they share to semel-core"]
        );
    }
}
