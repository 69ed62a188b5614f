//! The list of source files in `docs/files.md`, made from the first sentence of each file.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::graph::packages;
use super::tree::{Finding, Tree, is_under};

const LIST: &str = "docs/files.md";

/// Writes the list. `cargo xtask files` does only this.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    let text = render(&Tree::read(root)?);
    fs::write(root.join(LIST), text).with_context(|| format!("{LIST} cannot be written"))
}

/// The list of files shows the tree as it is.
pub(crate) fn file_list_is_current(tree: &Tree) -> Vec<Finding> {
    let (written, current) = (tree.text(LIST).unwrap_or_default(), render(tree));
    if written == current {
        return Vec::new();
    }
    let differs = written.lines().zip(current.lines()).take_while(|(old, new)| old == new).count();
    vec![Finding::at(LIST, differs + 1, "it is out of date: run `cargo xtask files`")]
}

fn render(tree: &Tree) -> String {
    let mut text = "# Source files\n\n\
        Made by `cargo xtask files` from the first sentence of each file. \
        [ARCHITECTURE.md](../ARCHITECTURE.md) says how they work together.\n"
        .to_owned();
    let mut packages = packages(tree);
    packages.sort_by(|a, b| a.folder.cmp(&b.folder));
    for package in packages {
        let source = format!("{}/src", package.folder);
        let mut files: Vec<(&str, &str)> =
            tree.rust().filter(|(path, _)| is_under(path, &source)).collect();
        // The unit tests of a file may lie beside it; the file's own line is enough.
        files.retain(|(path, _)| !path.ends_with("/tests.rs"));
        if files.is_empty() {
            continue;
        }
        files.sort_by_key(|(path, _)| (!path.ends_with("/lib.rs"), path.trim_end_matches(".rs")));
        let _ = writeln!(text, "\n## {}\n\n| file | what lives there |\n|---|---|", package.folder);
        for (path, source_text) in files {
            let file = &path[source.len() + 1..];
            let purpose = first_sentence(source_text).replace('|', "\\|");
            let _ = writeln!(text, "| [`{file}`](../{path}) | {purpose} |");
        }
    }
    text
}

/// The first sentence of the file's documentation, without its full stop.
fn first_sentence(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    let end = paragraph.find(". ").unwrap_or(paragraph.len());
    paragraph[..end].trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(list: &str) -> Tree {
        Tree::of(&[
            (LIST, list),
            ("crates/core/Cargo.toml", "[package]\nname = \"semel-core\"\n"),
            ("crates/core/src/lib.rs", "//! The front page of\n//! core. More of it.\n"),
            ("crates/core/src/key.rs", "//! Keys.\n//!\n//! Details.\n"),
            ("crates/core/src/key/tests.rs", "//! Tests.\n"),
        ])
    }

    #[test]
    fn the_list_has_the_first_sentence_of_each_file() {
        let text = render(&tree(""));
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| [")).collect();
        assert_eq!(
            rows,
            [
                "| [`lib.rs`](../crates/core/src/lib.rs) | The front page of core |",
                "| [`key.rs`](../crates/core/src/key.rs) | Keys |",
            ]
        );
    }

    #[test]
    fn a_list_that_is_out_of_date_is_found() {
        let current = render(&tree(""));
        assert_eq!(file_list_is_current(&tree(&current)), []);
        let stale = current.replace("Keys", "Key");
        let found = file_list_is_current(&tree(&stale));
        assert_eq!(
            found.iter().map(Finding::to_string).collect::<Vec<_>>(),
            ["docs/files.md:10: it is out of date: run `cargo xtask files`"]
        );
    }
}
