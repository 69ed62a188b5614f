//! What the rules need of Cargo's files, with the line at which each dependency stands.
//!
//! `cargo metadata` has no lines, and the rules are also tested on trees that are made up.

use std::borrow::Cow;

use toml::{
    Spanned, Table, Value,
    de::{DeTable, DeValue},
};

/// Which list of a manifest a dependency is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of what is shipped.
    Normal,
    /// Used by a build script.
    Build,
    /// Used by tests, examples and benchmarks.
    Dev,
    /// Named once for all members, in the root's manifest.
    Workspace,
}

/// One dependency as a manifest names it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    /// The name used in the manifest.
    pub(crate) name: String,
    /// The package's own name, where it differs.
    pub(crate) package: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) line: usize,
    /// `workspace = true`
    pub(crate) inherited: bool,
    /// `path = …`: one of our own crates.
    pub(crate) local: bool,
}

/// The value at a path of keys.
pub(crate) fn value(text: &str, path: &[&str]) -> Option<Value> {
    let mut value = Value::Table(text.parse::<Table>().ok()?);
    for key in path {
        let Value::Table(table) = &mut value else { return None };
        value = table.remove(*key)?;
    }
    Some(value)
}

/// The texts of the list at a path of keys.
pub(crate) fn list(text: &str, path: &[&str]) -> Vec<String> {
    let values = value(text, path).and_then(|value| value.as_array().cloned()).unwrap_or_default();
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The names of the tables of a list, such as `[[bin]]`, with the tables.
pub(crate) fn named(text: &str, list: &str) -> Vec<(String, Table)> {
    let values = value(text, &[list]).and_then(|value| value.as_array().cloned());
    let tables = values.into_iter().flatten().filter_map(|value| {
        let Value::Table(table) = value else { return None };
        Some((table.get("name")?.as_str()?.to_owned(), table))
    });
    tables.collect()
}

/// Every dependency of a manifest, of every kind and for every platform, in the order of lines.
pub(crate) fn dependencies(text: &str) -> Vec<Dependency> {
    let Ok(manifest) = DeTable::parse(text) else { return Vec::new() };
    let manifest = manifest.get_ref();
    let mut found = Vec::new();
    if let Some(shared) = table(manifest, "workspace").and_then(|it| table(it, "dependencies")) {
        found.extend(listed(text, shared, Kind::Workspace));
    }
    let platforms = table(manifest, "target").into_iter().flat_map(|targets| targets.values());
    let platforms = platforms.filter_map(|platform| platform.get_ref().as_table());
    for lists in platforms.chain([manifest]) {
        for (name, kind) in [
            ("dependencies", Kind::Normal),
            ("build-dependencies", Kind::Build),
            ("dev-dependencies", Kind::Dev),
        ] {
            found.extend(table(lists, name).into_iter().flat_map(|list| listed(text, list, kind)));
        }
    }
    found.sort_by_key(|dependency| dependency.line);
    found
}

/// The packages of a `Cargo.lock` with the names of what each depends on.
pub(crate) fn locked(text: &str) -> Vec<(String, Vec<String>)> {
    // An item is "name", "name version" or "name version (source)".
    let first = |item: &Value| item.as_str()?.split(' ').next().map(str::to_owned);
    let packages = named(text, "package").into_iter().map(|(name, package)| {
        let items = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        (name, items.filter_map(first).collect())
    });
    packages.collect()
}

fn table<'a, 'i>(parent: &'a DeTable<'i>, key: &str) -> Option<&'a DeTable<'i>> {
    parent.get(key)?.get_ref().as_table()
}

/// The dependencies in one list: both `name = …` and `[list.name]` are tables in it.
fn listed(text: &str, list: &DeTable<'_>, kind: Kind) -> Vec<Dependency> {
    let one = |(name, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        let settings = value.get_ref().as_table();
        let setting = |key: &str| settings.and_then(|table| table.get(key)).map(Spanned::get_ref);
        let before = text.get(..name.span().start).unwrap_or_default();
        Dependency {
            name: name.get_ref().to_string(),
            package: setting("package").and_then(DeValue::as_str).map(str::to_owned),
            kind,
            line: before.matches('\n').count() + 1,
            inherited: setting("workspace").and_then(DeValue::as_bool) == Some(true),
            local: setting("path").is_some(),
        }
    };
    list.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, kind: Kind) -> Vec<String> {
        let of_kind = dependencies(text).into_iter().filter(|found| found.kind == kind);
        of_kind.map(|found| found.package.unwrap_or(found.name)).collect()
    }

    #[test]
    fn every_list_of_a_manifest_is_read() {
        let text = "
[dependencies]
bytes.workspace = true
alias = { package = \"tokio\", version = \"1\" }
[dependencies.http]
version = \"1\"
[target.'cfg(target_os = \"linux\")'.dependencies.mio]
version = \"1\"
[dev-dependencies]
proptest = { workspace = true }
[build-dependencies]
cc = \"1\"
";
        assert_eq!(names(text, Kind::Normal), ["bytes", "tokio", "http", "mio"]);
        assert_eq!(names(text, Kind::Dev), ["proptest"]);
        assert_eq!(names(text, Kind::Build), ["cc"]);
        let inherited = dependencies(text).into_iter().filter(|found| found.inherited);
        let lines: Vec<_> = inherited.map(|found| (found.name, found.line)).collect();
        assert_eq!(lines, [("bytes".to_owned(), 3), ("proptest".to_owned(), 10)]);
    }

    #[test]
    fn our_own_crates_are_distinguished_from_foreign_ones() {
        let text =
            "[workspace.dependencies]\nsemel = { path = \"crates/semel\" }\nsfv = \"0.16\"\n";
        let found = dependencies(text);
        assert!(found.iter().all(|dependency| dependency.kind == Kind::Workspace));
        assert_eq!((found[0].local, found[0].line), (true, 2));
        assert_eq!((found[1].local, found[1].line), (false, 3));
    }

    #[test]
    fn a_lock_file_is_a_graph_of_names() {
        let text = "version = 4\n\n\
            [[package]]\nname = \"a\"\ndependencies = [\n \"b\",\n \"c 1.0\",\n]\n\n\
            [[package]]\nname = \"b\"\n";
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            locked(text),
            [("a".to_owned(), list(&["b", "c"])), ("b".to_owned(), list(&[]))]
        );
    }
}
