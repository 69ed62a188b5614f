//! The files of the repository as text, which is all that a rule may look at.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

/// Every text file by its path from the root, with `/` on every system.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads what git tracks or would track; without git, everything that is not built.
    pub(crate) fn read(root: &Path) -> anyhow::Result<Self> {
        let paths = match tracked(root) {
            Some(paths) => paths,
            None => walked(root)?,
        };
        let mut files = BTreeMap::new();
        for path in paths {
            let full = root.join(&path);
            // A tracked file may be deleted but not committed; a link or a submodule is no text.
            if !fs::symlink_metadata(&full).is_ok_and(|data| data.is_file()) {
                continue;
            }
            let bytes = fs::read(&full).with_context(|| format!("cannot read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.insert(path, text);
            }
        }
        Ok(Self { files })
    }

    /// A tree made up for a test.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Self { files: files.iter().map(own).collect() }
    }

    /// Every file, in the order of paths.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every Rust file.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether the path is a file, or a folder with a file in it.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.contains_key(path) || self.files.keys().any(|file| is_under(file, path))
    }
}

/// Whether `path` lies in `folder`.
pub(crate) fn is_under(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// The lines of a text, counted from 1.
pub(crate) fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// One place where a rule does not hold, and what to do instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    /// A finding at a line.
    pub(crate) fn at(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }

    /// A finding about a whole file, shown at its first line.
    pub(crate) fn file(path: &str, what: impl Into<String>) -> Self {
        Self::at(path, 1, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// What git tracks, or would track if it were added now.
fn tracked(root: &Path) -> Option<Vec<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).stderr(Stdio::null());
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    // A copy without its own repository may lie inside another one that ignores it.
    (!paths.is_empty()).then_some(paths)
}

/// Everything but what is built, for a copy of the sources without git.
fn walked(root: &Path) -> anyhow::Result<Vec<String>> {
    const BUILT: [&str; 4] = [".git", "target", "corpus", "artifacts"];
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root.join(&folder))
            .with_context(|| format!("cannot list the folder {folder:?}"))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            if !entry.file_type()?.is_dir() {
                paths.push(path);
            } else if !BUILT.contains(&name.as_str()) {
                folders.push(path);
            }
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_and_the_walk_agree_on_the_sources() {
        let root = crate::root();
        let walked = walked(&root).unwrap();
        for path in tracked(&root).unwrap_or_default() {
            if path.ends_with(".rs") && root.join(&path).exists() {
                assert!(walked.contains(&path), "the walk misses {path}");
            }
        }
    }

    #[test]
    fn a_folder_with_a_file_in_it_exists() {
        let tree = Tree::of(&[("crates/core/src/lib.rs", "")]);
        assert!(tree.has("crates/core") && tree.has("crates/core/"));
        assert!(!tree.has("crates/cor") && !tree.has("crates/sqlite"));
    }

    #[test]
    fn a_finding_reads_as_a_place_and_a_sentence() {
        let finding = Finding::at("a.rs", 7, "say why");
        assert_eq!(finding.to_string(), "a.rs:7: say why");
    }
}
