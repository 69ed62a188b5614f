//! No two modules of a crate need each other, directly or through others.
//!
//! A module and its submodules are one node. The crate root is a node as far as it defines
//! something itself: a path through one of its re-exports leads to the module that it names.
//! What only tests compile does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::tokens::{Token, is_name, matches, shipped};
use super::tree::{Finding, Tree, is_under};

/// The crate root as a node.
const ROOT: &str = "lib";

const ADVICE: &str = "move what both need to the lower module";

/// The first place where one module names another.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

/// The modules of a crate depend on each other in one direction.
pub(crate) fn modules_have_no_cycles(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter_map(|(path, text)| Some((crate_of(path)?, path, text)));
    let mut crates: BTreeMap<&str, Vec<Source<'_>>> = BTreeMap::new();
    for (name, path, text) in sources {
        crates.entry(name).or_default().extend(Source::read(name, path, text));
    }
    crates.values().flat_map(|sources| cycles(&edges(sources))).collect()
}

/// `crates/core` of `crates/core/src/key.rs`.
fn crate_of(path: &str) -> Option<&str> {
    let end = path.find("/src/")?;
    path.get(..end).filter(|folder| is_under(folder, "crates"))
}

/// One file and the module that it is.
#[derive(Debug)]
struct Source<'a> {
    path: &'a str,
    module: Vec<&'a str>,
    tokens: Vec<Token<'a>>,
}

impl<'a> Source<'a> {
    fn read(name: &str, path: &'a str, text: &'a str) -> Option<Self> {
        let inner = path.strip_prefix(name)?.strip_prefix("/src/")?.strip_suffix(".rs")?;
        let module = match inner {
            "main" => return None,
            "lib" => Vec::new(),
            _ => inner.trim_end_matches("/mod").split('/').collect(),
        };
        (!module.contains(&"tests")).then(|| Self { path, module, tokens: shipped(text) })
    }

    fn node(&self) -> &'a str {
        self.module.first().copied().unwrap_or(ROOT)
    }
}

/// Every pair of modules of which the first names the second.
fn edges<'a>(sources: &[Source<'a>]) -> Edges<'a> {
    let root = sources.iter().find(|source| source.module.is_empty());
    let root = root.map(Root::of).unwrap_or_default();
    let mut edges = Edges::new();
    // A file that no module declares outside tests is not shipped, so the root's list counts.
    let is_shipped =
        |source: &&Source<'_>| source.node() == ROOT || root.modules.contains(source.node());
    for source in sources.iter().filter(is_shipped) {
        let from = source.node();
        for (path, line) in paths(source) {
            let to = root.node_of(&path);
            if to != from {
                edges.entry(from).or_default().entry(to).or_insert((source.path, line));
            }
        }
    }
    edges
}

/// What the names in a crate root stand for.
#[derive(Debug, Default)]
struct Root<'a> {
    modules: BTreeSet<&'a str>,
    exports: BTreeMap<&'a str, &'a str>,
}

impl<'a> Root<'a> {
    fn of(source: &Source<'a>) -> Self {
        let mut root = Self::default();
        let tokens = &source.tokens;
        for (at, token) in tokens.iter().enumerate() {
            let name = tokens.get(at + 1).map_or("", |next| next.text);
            if token.text == "mod" && is_name(name) {
                root.modules.insert(name);
            }
        }
        for (at, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "use") {
            for (path, name, _) in use_tree(tokens, at + 1).0 {
                let first = path.iter().find(|part| !matches!(**part, "crate" | "self"));
                if let Some(module) = first.filter(|module| root.modules.contains(**module)) {
                    root.exports.insert(name, module);
                }
            }
        }
        root
    }

    /// The node that a path from the crate root leads to.
    fn node_of(&self, path: &[&'a str]) -> &'a str {
        match path.first().copied() {
            Some(first) if self.modules.contains(first) => first,
            Some(first) => self.exports.get(first).copied().unwrap_or(ROOT),
            None => ROOT,
        }
    }
}

/// Every path of a file that names something of its own crate, from the crate root, with its line.
fn paths<'a>(source: &Source<'a>) -> Vec<(Vec<&'a str>, usize)> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    let mut module = source.module.clone();
    // The depth at which each inline module began.
    let mut inline = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let mut next = at + 1;
        match token.text {
            "mod" if matches(tokens, at + 2, &["{"]) => {
                module.extend(tokens.get(at + 1).map(|name| name.text));
                inline.push(depth);
            }
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if inline.last() == Some(&depth) {
                    inline.pop();
                    module.pop();
                }
            }
            "use" => {
                let (leaves, end) = use_tree(tokens, at + 1);
                let is_export = source.module.is_empty() && is_public(tokens, at);
                let leaves = leaves.into_iter().filter(|_| !is_export);
                found.extend(
                    leaves.filter_map(|(path, _, line)| Some((from_root(&path, &module)?, line))),
                );
                next = end;
            }
            "crate" | "super" if matches(tokens, at + 1, &["::"]) => {
                let path = plain_path(tokens, at);
                next = at + path.len() * 2 - 1;
                found.extend(from_root(&path, &module).map(|path| (path, token.line)));
            }
            // The root names its own modules without `crate`.
            name if source.module.is_empty() && matches(tokens, at + 1, &["::"]) => {
                let is_first =
                    at.checked_sub(1).is_none_or(|before| !matches(tokens, before, &["::"]));
                if is_first && is_name(name) {
                    found.push((vec![name], token.line));
                }
            }
            _ => {}
        }
        at = next;
    }
    found
}

/// Whether the `use` at `at` is a re-export.
fn is_public(tokens: &[Token<'_>], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| tokens.get(before));
    // `pub` or `pub(crate)`.
    before.is_some_and(|token| matches!(token.text, "pub" | ")"))
}

/// `a::b::c` from `at` on.
fn plain_path<'a>(tokens: &[Token<'a>], at: usize) -> Vec<&'a str> {
    let mut path = Vec::new();
    for pair in tokens.get(at..).unwrap_or_default().chunks(2) {
        path.extend(pair.first().map(|name| name.text));
        let goes_on = pair.get(1).is_some_and(|sign| sign.text == "::");
        let next = tokens.get(at + path.len() * 2).is_some_and(|name| is_name(name.text));
        if !goes_on || !next {
            break;
        }
    }
    path
}

/// The path from the crate root, if it stays in the crate.
fn from_root<'a>(path: &[&'a str], module: &[&'a str]) -> Option<Vec<&'a str>> {
    let (first, rest) = path.split_first()?;
    let mut full = match *first {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module.split_last().map(|(_, above)| above.to_vec()).unwrap_or_default(),
        // The root names its own modules without `crate`.
        _ if module.is_empty() => vec![*first],
        _ => return None,
    };
    for part in rest {
        match *part {
            "super" => drop(full.pop()),
            "self" => {}
            part => full.push(part),
        }
    }
    Some(full)
}

/// A path of a `use`, the name that it gets, and its line.
type Leaf<'a> = (Vec<&'a str>, &'a str, usize);

/// The leaves of the tree that begins at `at`, and the token after it.
fn use_tree<'a>(tokens: &[Token<'a>], at: usize) -> (Vec<Leaf<'a>>, usize) {
    let mut leaves = Vec::new();
    let mut path: Vec<&str> = Vec::new();
    // The length of the path at which each open brace began.
    let mut open = Vec::new();
    let mut alias = None;
    let mut line = 0;
    let mut is_leaf = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "{" => {
                open.push(path.len());
                is_leaf = false;
            }
            "," | "}" | ";" => {
                if is_leaf {
                    let name = alias.take().or_else(|| path.last().copied()).unwrap_or_default();
                    leaves.push((path.clone(), name, line));
                }
                is_leaf = false;
                if token.text == "}" {
                    open.pop();
                }
                path.truncate(open.last().copied().unwrap_or_default());
                if token.text == ";" {
                    return (leaves, index + 1);
                }
            }
            "as" => alias = Some(""),
            name if alias == Some("") => alias = Some(name),
            "::" => {}
            name => {
                path.push(name);
                line = token.line;
                is_leaf = true;
            }
        }
    }
    (leaves, tokens.len())
}

/// One finding for each group of modules that need each other, with a shortest cycle in it.
fn cycles(edges: &Edges<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut done = BTreeSet::new();
    for start in edges.keys() {
        let Some(cycle) = cycle(edges, start) else { continue };
        if cycle.iter().any(|node| done.contains(node)) {
            continue;
        }
        done.extend(cycle.iter().copied());
        findings.extend(finding(edges, &cycle));
    }
    findings
}

/// A shortest way from a module back to itself; its first node is not repeated at the end.
fn cycle<'a>(edges: &Edges<'a>, start: &'a str) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut ways = VecDeque::from([vec![start]]);
    while let Some(way) = ways.pop_front() {
        let last = way.last().copied()?;
        for next in edges.get(last).into_iter().flat_map(BTreeMap::keys) {
            if *next == start {
                return Some(way);
            }
            if seen.insert(*next) {
                let mut longer = way.clone();
                longer.push(next);
                ways.push_back(longer);
            }
        }
    }
    None
}

fn finding(edges: &Edges<'_>, cycle: &[&str]) -> Option<Finding> {
    let successors = cycle.iter().cycle().skip(1);
    let places: Vec<_> = (cycle.iter().zip(successors))
        .filter_map(|(from, to)| Some((to, edges.get(from)?.get(to)?)))
        .collect();
    let (_, (path, line)) = places.first()?;
    let steps = places.iter().map(|(to, (path, line))| format!(" -> {to} ({path}:{line})"));
    let steps: String = steps.collect();
    let what = format!("{}{steps}: {ADVICE}", cycle.first()?);
    Some(Finding::at(path, *line, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(files: &[(&str, &str)]) -> Vec<String> {
        modules_have_no_cycles(&Tree::of(files)).iter().map(Finding::to_string).collect()
    }

    const ROOT_OF_TWO: (&str, &str) = ("crates/a/src/lib.rs", "mod one;\nmod two;\n");

    #[test]
    fn a_cycle_is_named_with_its_files() {
        let found = shown(&[
            ROOT_OF_TWO,
            ("crates/a/src/one.rs", "//! One.\nuse crate::two::Two;"),
            ("crates/a/src/two/inner.rs", "fn f() -> super::super::one::One {}"),
        ]);
        let cycle = "one -> two (crates/a/src/one.rs:2) -> one (crates/a/src/two/inner.rs:1)";
        let expected = format!("crates/a/src/one.rs:2: {cycle}: {ADVICE}");
        assert_eq!(found, [expected]);
    }

    #[test]
    fn one_direction_and_the_inside_of_a_module_are_no_cycle() {
        let one = "use crate::{one::inner::A, two::{self, B as C}};";
        let inner = "use super::One; use crate::one::Two;";
        let two = "use self::x::Y; // use crate::one\nconst A: &str = \"crate::one::One\";";
        let files = [
            ROOT_OF_TWO,
            ("crates/a/src/one.rs", one),
            ("crates/a/src/one/inner.rs", inner),
            ("crates/a/src/two.rs", two),
        ];
        assert_eq!(shown(&files), [""; 0]);
    }

    #[test]
    fn a_re_export_of_the_root_leads_to_the_module_that_defines_the_name() {
        let root =
            ("crates/a/src/lib.rs", "mod one; mod two; pub use two::{Two, Other as Second};");
        let one = |text| ("crates/a/src/one.rs", text);
        let two = ("crates/a/src/two.rs", "use crate::one;");
        assert_eq!(shown(&[root, one("use crate::Second;"), two]).len(), 1);
        assert_eq!(shown(&[root, one("fn f(x: super::Two) {}"), two]).len(), 1);
        assert_eq!(shown(&[root, one("use crate::Macro;"), two]).len(), 0);
    }

    #[test]
    fn a_definition_in_the_crate_root_is_a_node() {
        let root = "mod one; pub struct Config { part: one::Part }";
        let files = [("crates/a/src/lib.rs", root), ("crates/a/src/one.rs", "use crate::Config;")];
        assert_eq!(shown(&files).len(), 1);
        let root = "mod one; use one::Part; pub struct Config(Part);";
        let files = [("crates/a/src/lib.rs", root), ("crates/a/src/one.rs", "use crate::Config;")];
        assert_eq!(shown(&files).len(), 1);
        let root = "mod one; pub(crate) use one::Part; pub struct Config;";
        let files = [("crates/a/src/lib.rs", root), ("crates/a/src/one.rs", "use crate::Config;")];
        assert_eq!(shown(&files).len(), 0);
    }

    #[test]
    fn tests_do_not_count() {
        let two = "use crate::one::One;";
        let test = "#[cfg(test)] mod tests { use crate::two::Two; } #[cfg(test)] mod testing;";
        let files = [
            ("crates/a/src/lib.rs", "mod one; mod two; #[cfg(test)] mod testing;"),
            ("crates/a/src/one.rs", test),
            ("crates/a/src/one/tests.rs", "use crate::two::Two;"),
            ("crates/a/src/testing.rs", "use crate::two::Two;"),
            ("crates/a/src/two.rs", two),
        ];
        assert_eq!(shown(&files), [""; 0]);
    }

    #[test]
    fn a_cycle_through_three_modules_is_found() {
        let files = [
            ("crates/a/src/lib.rs", "mod one; mod two; mod three;"),
            ("crates/a/src/one.rs", "use crate::two::A;"),
            ("crates/a/src/two.rs", "use crate::three::A;"),
            ("crates/a/src/three.rs", "mod inline { use super::super::one::A; }"),
        ];
        assert_eq!(shown(&files).len(), 1);
    }
}
