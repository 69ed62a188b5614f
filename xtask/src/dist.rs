//! `cargo xtask dist`: the program as it is released, without a path of the machine that built it,
//! and its packages in `target/dist/packages`.
//!
//! The compiler writes the paths of sources into a program, for the messages of panics and for
//! debuggers; they name the user who built it and differ between machines. Cargo's `trim-paths` is
//! not stable, and its configuration file cannot name the folder of the checkout, so this command
//! says it to both compilers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::package::{self, ReleasedProgram};
use crate::run;

/// Builds the program, looks for paths that should not be in it, and packs it.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let program = build(root)?;
    release(root, &program).make()
}

/// The same, and then tries the Debian package.
pub(crate) fn torture(root: &Path) -> anyhow::Result<()> {
    let program = build(root)?;
    let release = release(root, &program);
    release.make()?;
    package::torture(&release)
}

fn release<'a>(root: &'a Path, program: &'a Path) -> ReleasedProgram<'a> {
    let folder = root.join("target").join("dist").join("packages");
    let epoch = git(root, &["log", "-1", "--format=%ct"]).unwrap_or_else(|| "0".to_owned());
    ReleasedProgram { root, program, folder, epoch }
}

/// The version with the commit and its date; `None` outside of a repository.
fn version(root: &Path) -> Option<String> {
    let commit = git(root, &["log", "-1", "--abbrev=12", "--format=%h %cs"])?;
    let modified =
        if git(root, &["status", "--porcelain"])?.is_empty() { "" } else { ", modified" };
    Some(format!("{} ({commit}{modified})", env!("CARGO_PKG_VERSION")))
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = root.join("target").join("dist");
    let prefixes = prefixes(root)?;
    let mut build = run::cargo(root, &["build", "--release", "--locked"]);
    build.args(["--package", "semel-cli", "--bin", "semel"]);
    build.env("CARGO_TARGET_DIR", &folder);
    // Its separator lets a path contain blanks. It takes precedence over RUSTFLAGS.
    build.env("CARGO_ENCODED_RUSTFLAGS", flags("--remap-path-prefix=", &prefixes).join("\u{1f}"));
    build.env("CFLAGS", flags("-ffile-prefix-map=", &prefixes).join(" "));
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "true");
    if let Some(version) = version(root) {
        build.env("SEMEL_VERSION", version);
    }
    run::step("dist", &mut build)?;
    let program = folder.join("release").join("semel");
    let bytes = fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    let found = found_in(&bytes, prefixes.iter().map(|(path, _)| path.as_path()));
    if !found.is_empty() {
        bail!("{} contains paths of this machine: {}", program.display(), found.join(", "));
    }
    println!("{} contains no path of this machine", program.display());
    Ok(program)
}

/// The folders whose paths are replaced, and by what. The last that fits counts, so the longest
/// come last.
fn prefixes(root: &Path) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let home = std::env::var_os("HOME").map(PathBuf::from).context("HOME is not set")?;
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let mut all = vec![(home, "/home"), (cargo, "/cargo"), (root.to_path_buf(), "/semel")];
    // A home of `/` or nothing would be in every path.
    all.retain(|(path, _)| path.parent().is_some());
    all.sort_by_key(|(path, _)| path.as_os_str().len());
    Ok(all)
}

fn flags(option: &str, prefixes: &[(PathBuf, &str)]) -> Vec<String> {
    prefixes.iter().map(|(path, name)| format!("{option}{}={name}", path.display())).collect()
}

/// Which of the paths are in a file.
fn found_in<'a>(bytes: &[u8], paths: impl Iterator<Item = &'a Path>) -> Vec<String> {
    let texts = paths.map(|path| path.display().to_string());
    texts
        .filter(|text| {
            bytes.windows(text.len() + 1).any(|part| part == format!("{text}/").as_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_program_is_found() {
        let paths = ["/builder", "/builder/semel", "/elsewhere"].map(PathBuf::from);
        let found = found_in(b"\0/builder/semel/src/main.rs\0", paths.iter().map(PathBuf::as_path));
        assert_eq!(found, ["/builder", "/builder/semel"]);
        assert!(found_in(b"/builders", paths.iter().map(PathBuf::as_path)).is_empty());
    }

    #[test]
    fn the_longest_path_is_said_last() {
        let all = prefixes(Path::new("/builder/of/programs/semel")).unwrap();
        let lengths: Vec<usize> = all.iter().map(|(path, _)| path.as_os_str().len()).collect();
        assert!(lengths.is_sorted(), "{all:?}");
        assert_eq!(flags("--x=", &[(PathBuf::from("/a b"), "/c")]), ["--x=/a b=/c"],);
    }
}
