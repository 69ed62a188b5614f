//! No two modules of a crate need each other, directly or through others.
//!
//! A module and its submodules are one node among the modules beside it, so every folder is checked
//! by itself. A module may use what its parent defines. The crate root is a node as far as it
//! defines something itself: a path through a re-export leads to the module that it names. What
//! only tests compile does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::tokens::{Token, is_name, matches, shipped};
use super::tree::{Finding, Tree, is_under};

/// The crate root as a node.
const ROOT: &str = "lib";

const ADVICE: &str = "move what both need to the lower module";

/// The re-exports that a path may pass through.
const MAX_RE_EXPORTS: usize = 8;

/// The first place where one module names another.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, usize)>>;

/// A path from the crate root.
type Path<'a> = Vec<&'a str>;

/// The modules of a crate depend on each other in one direction, and so do those of each folder.
pub(crate) fn modules_have_no_cycles(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter_map(|(path, text)| Some((crate_of(path)?, path, text)));
    let mut crates: BTreeMap<&str, Vec<Source<'_>>> = BTreeMap::new();
    for (name, path, text) in sources {
        crates.entry(name).or_default().extend(Source::read(name, path, text));
    }
    crates.values().flat_map(|sources| edges(sources).into_values()).flat_map(cycles).collect()
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
    module: Path<'a>,
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
}

/// For each folder, every pair of its modules of which the first names the second.
fn edges<'a>(sources: &[Source<'a>]) -> BTreeMap<Path<'a>, Edges<'a>> {
    let modules = Modules::read(sources);
    let mut edges: BTreeMap<Path<'a>, Edges<'a>> = BTreeMap::new();
    for source in sources.iter().filter(|source| modules.is_shipped(&source.module)) {
        for (path, line) in paths(source) {
            let Some((folder, from, to)) = modules.edge(&source.module, path) else { continue };
            let edges = edges.entry(folder).or_default();
            edges.entry(from).or_default().entry(to).or_insert((source.path, line));
        }
    }
    edges
}

/// What the names in one module stand for.
#[derive(Debug, Default)]
struct Names<'a> {
    modules: BTreeSet<&'a str>,
    /// What it imports, with its path, and whether it re-exports it.
    uses: BTreeMap<&'a str, (Path<'a>, bool)>,
}

/// The modules of a crate, by path.
#[derive(Debug)]
struct Modules<'a>(BTreeMap<Path<'a>, Names<'a>>);

impl<'a> Modules<'a> {
    fn read(sources: &[Source<'a>]) -> Self {
        let names = |source: &Source<'a>| {
            let mut names = Names::default();
            let tokens = &source.tokens;
            for (at, token) in tokens.iter().enumerate() {
                let name = tokens.get(at + 1).map_or("", |next| next.text);
                if token.text == "mod" && is_name(name) {
                    names.modules.insert(name);
                }
            }
            for (at, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "use") {
                for (path, name, _) in use_tree(tokens, at + 1).0 {
                    let is_own = path.first().is_some_and(|first| names.modules.contains(first));
                    let full = if is_own {
                        Some([&*source.module, &*path].concat())
                    } else {
                        from_root(&path, &source.module)
                    };
                    let is_public = is_public(tokens, at);
                    names.uses.extend(full.map(|full| (name, (full, is_public))));
                }
            }
            (source.module.clone(), names)
        };
        Self(sources.iter().map(names).collect())
    }

    /// Whether it is compiled outside tests: the modules above declare it.
    fn is_shipped(&self, module: &[&str]) -> bool {
        let declares = |depth: usize| {
            let (above, name) = (module.get(..depth), module.get(depth));
            let names = above.and_then(|above| self.0.get(above));
            names.zip(name).is_none_or(|(names, name)| names.modules.contains(name))
        };
        (0..module.len()).all(declares)
    }

    /// The path to where a name in `module` is defined: behind all imports that it can see.
    fn resolve(&self, module: &[&str], mut path: Path<'a>) -> Path<'a> {
        for _ in 0..MAX_RE_EXPORTS {
            let leads_on = (0..path.len()).find_map(|depth| {
                let (above, name) = (path.get(..depth)?, path.get(depth)?);
                let names = self.0.get(above).filter(|names| !names.modules.contains(name))?;
                let (target, is_public) = names.uses.get(name)?;
                let is_visible = *is_public || module.starts_with(above);
                let rest = path.get(depth + 1..).filter(|_| is_visible)?;
                Some([&**target, rest].concat())
            });
            match leads_on {
                Some(target) if target != path => path = target,
                _ => break,
            }
        }
        path
    }

    /// The folder in which both are, the module that names the path, and the one that it names.
    fn edge(&self, module: &[&'a str], path: Path<'a>) -> Option<(Path<'a>, &'a str, &'a str)> {
        let path = self.resolve(module, path);
        let shared = module.iter().zip(&path).take_while(|(left, right)| left == right).count();
        let folder = path.get(..shared)?;
        let names = self.0.get(folder);
        let to = path.get(shared).filter(|to| names.is_some_and(|it| it.modules.contains(*to)));
        let is_root = folder.is_empty();
        let from = module.get(shared).copied().or(is_root.then_some(ROOT))?;
        let to = to.copied().or(is_root.then_some(ROOT))?;
        (from != to).then(|| (folder.to_vec(), from, to))
    }
}

/// Every path of a file that names something of its own crate, from the crate root, with its line.
fn paths<'a>(source: &Source<'a>) -> Vec<(Path<'a>, usize)> {
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
fn from_root<'a>(path: &[&'a str], module: &[&'a str]) -> Option<Path<'a>> {
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
type Leaf<'a> = (Path<'a>, &'a str, usize);

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
fn cycles(edges: Edges<'_>) -> Vec<Finding> {
    let edges = &edges;
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
    fn a_cycle_inside_a_folder_is_found_also_through_a_re_export_of_its_parent() {
        let shown = |parent, left, right| {
            shown(&[
                ("crates/a/src/lib.rs", "mod folder;"),
                ("crates/a/src/folder.rs", parent),
                ("crates/a/src/folder/left.rs", left),
                ("crates/a/src/folder/right.rs", right),
            ])
        };
        let modules = "mod left; mod right; pub use left::Left; struct Own;";
        assert_eq!(shown(modules, "use super::right::R;", "use super::left::L;").len(), 1);
        assert_eq!(shown(modules, "use super::right::R;", "use crate::folder::Left;").len(), 1);
        assert_eq!(shown(modules, "use super::right::R;", "use super::Own;").len(), 0);
        let private = "mod left; mod right; use left::Left; fn f(_: Left) {}";
        assert_eq!(shown(private, "use super::right::R;", "use super::Left;").len(), 1);
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
