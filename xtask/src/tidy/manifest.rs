//! Cargo's files, read as far as the rules need.
//!
//! This is not a TOML parser. It knows tables, keys, values over several lines and comments, which
//! is what a manifest is made of; strings over several lines do not occur in ours.

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

/// One `key = value`, with the table it stands in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) table: String,
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) line: usize,
}

/// The value of a key of a table, without its quotes.
pub(crate) fn value(text: &str, table: &str, key: &str) -> Option<String> {
    let wanted = |entry: &Entry| entry.table == table && entry.key == key;
    entries(text).into_iter().find(wanted).map(|entry| unquoted(&entry.value).to_owned())
}

/// The texts of a list, which is the value of a key of a table.
pub(crate) fn list(text: &str, table: &str, key: &str) -> Vec<String> {
    let value = value(text, table, key).unwrap_or_default();
    let words = value.trim_matches(['[', ']']).split(',').map(|word| unquoted(word.trim()));
    words.filter(|word| !word.is_empty()).map(ToOwned::to_owned).collect()
}

/// The names of the `[[bin]]` tables.
pub(crate) fn binaries(text: &str) -> Vec<String> {
    let name = |entry: &Entry| entry.table == "bin" && entry.key == "name";
    let names = entries(text).into_iter().filter(name);
    names.map(|entry| unquoted(&entry.value).to_owned()).collect()
}

/// Every dependency of a manifest, of every kind and for every platform.
pub(crate) fn dependencies(text: &str) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    for entry in entries(text) {
        let Some((kind, name, setting)) = dependency_key(&entry) else { continue };
        let known = found.iter().position(|old| old.kind == kind && old.name == name);
        let index = known.unwrap_or_else(|| {
            found.push(Dependency {
                name: name.to_owned(),
                package: None,
                kind,
                line: entry.line,
                inherited: false,
                local: false,
            });
            found.len() - 1
        });
        let dependency = &mut found[index];
        match setting {
            Some("workspace") => dependency.inherited = entry.value == "true",
            Some("path") => dependency.local = true,
            Some("package") => dependency.package = Some(unquoted(&entry.value).to_owned()),
            Some(_) => {}
            None => {
                dependency.inherited = inline(&entry.value, "workspace") == Some("true");
                dependency.local = inline(&entry.value, "path").is_some();
                dependency.package = inline(&entry.value, "package").map(str::to_owned);
            }
        }
    }
    found
}

/// Every `key = value` of a TOML text.
pub(crate) fn entries(text: &str) -> Vec<Entry> {
    let mut table = String::new();
    let mut entries: Vec<Entry> = Vec::new();
    let mut open = 0;
    for (index, line) in text.lines().enumerate() {
        let line = without_comment(line).trim();
        if open > 0 {
            open += nesting(line);
            if let Some(last) = entries.last_mut() {
                last.value.push(' ');
                last.value.push_str(line);
            }
        } else if line.starts_with('[') {
            table = line.trim_start_matches('[').trim_end_matches(']').trim().to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            open = nesting(value);
            entries.push(Entry {
                table: table.clone(),
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
                line: index + 1,
            });
        }
    }
    entries
}

/// The packages of a `Cargo.lock` with the names of what each depends on.
pub(crate) fn locked(text: &str) -> Vec<(String, Vec<String>)> {
    let mut packages: Vec<(String, Vec<String>)> = Vec::new();
    for entry in entries(text).into_iter().filter(|entry| entry.table == "package") {
        if entry.key == "name" {
            packages.push((unquoted(&entry.value).to_owned(), Vec::new()));
        } else if let ("dependencies", Some((_, names))) = (&*entry.key, packages.last_mut()) {
            // An item is "name", "name version" or "name version (source)".
            let items = entry.value.split('"').skip(1).step_by(2);
            names.extend(items.filter_map(|item| item.split(' ').next()).map(str::to_owned));
        }
    }
    packages
}

/// The kind, name and setting of an entry that belongs to a dependency. Both `name = …` under
/// `[dependencies]` and `setting = …` under `[dependencies.name]` do, also for one platform.
fn dependency_key(entry: &Entry) -> Option<(Kind, &str, Option<&str>)> {
    if let Some(kind) = kind_of(&entry.table) {
        return Some(match entry.key.split_once('.') {
            Some((name, setting)) => (kind, unquoted(name), Some(setting)),
            None => (kind, unquoted(&entry.key), None),
        });
    }
    let (list, name) = entry.table.rsplit_once('.')?;
    Some((kind_of(list)?, unquoted(name), Some(&entry.key)))
}

fn kind_of(table: &str) -> Option<Kind> {
    match table.rsplit('.').next()? {
        "dependencies" if table == "workspace.dependencies" => Some(Kind::Workspace),
        "dependencies" => Some(Kind::Normal),
        "build-dependencies" => Some(Kind::Build),
        "dev-dependencies" => Some(Kind::Dev),
        _ => None,
    }
}

/// The value of a key in an inline table, without its quotes.
fn inline<'a>(value: &'a str, key: &str) -> Option<&'a str> {
    let inside = value.strip_prefix('{')?;
    inside.split([',', '}']).find_map(|item| {
        let (name, value) = item.split_once('=')?;
        (name.trim() == key).then(|| unquoted(value.trim()))
    })
}

fn unquoted(value: &str) -> &str {
    value.trim_matches(['"', '\''])
}

fn without_comment(line: &str) -> &str {
    let hash = outside_strings(line).find(|(_, character)| *character == '#');
    hash.map_or(line, |(index, _)| &line[..index])
}

/// How many brackets a line leaves open.
fn nesting(line: &str) -> i32 {
    let one = |(_, character)| match character {
        '[' | '{' => 1,
        ']' | '}' => -1,
        _ => 0,
    };
    outside_strings(line).map(one).sum()
}

fn outside_strings(line: &str) -> impl Iterator<Item = (usize, char)> {
    let mut quote = None;
    line.char_indices().filter(move |(_, character)| match quote {
        Some(open) => {
            if *character == open {
                quote = None;
            }
            false
        }
        None => {
            if matches!(character, '"' | '\'') {
                quote = Some(*character);
            }
            quote.is_none()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, kind: Kind) -> Vec<String> {
        let of_kind = dependencies(text).into_iter().filter(|found| found.kind == kind);
        of_kind.map(|found| found.package.unwrap_or(found.name)).collect()
    }

    #[test]
    fn every_way_to_write_a_dependency_is_seen() {
        let text = "
[dependencies]
bytes.workspace = true
hyper = { version = \"1\", features = [
  \"http1\", # why
  \"server\",
] }
alias = { package = \"tokio\", version = \"1\" }
[dependencies.http]
version = \"1\"
[target.'cfg(unix)'.dependencies]
rustix = \"1\"
[target.'cfg(target_os = \"linux\")'.dependencies.mio]
version = \"1\"
[dev-dependencies]
proptest = { workspace = true }
[build-dependencies]
cc = \"1\"
";
        let normal = ["bytes", "hyper", "tokio", "http", "rustix", "mio"];
        assert_eq!(names(text, Kind::Normal), normal);
        assert_eq!(names(text, Kind::Dev), ["proptest"]);
        assert_eq!(names(text, Kind::Build), ["cc"]);
        assert!(
            dependencies(text).iter().all(
                |found| found.inherited == ["bytes", "proptest"].contains(&found.name.as_str())
            )
        );
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

    #[test]
    fn binaries_and_values_are_read_by_name() {
        let text = "[package]\nname = \"fuzz\"\n\
            [[bin]]\nname = \"key\"\npath = \"key.rs\"\n\
            [[bin]]\nname = \"json\"\n";
        assert_eq!(binaries(text), ["key", "json"]);
        assert_eq!(value(text, "package", "name").as_deref(), Some("fuzz"));
    }
}
