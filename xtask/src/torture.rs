//! `cargo xtask torture`: the long editions of the tests whose names contain `torture`.
//!
//! Each such test has a short edition that `cargo xtask test` runs, and a long one that it chooses
//! when `SEMEL_TORTURE` is set. After them come the features one by one, where `cargo hack` is
//! installed, and the checks that need a release build or the network: the program as it is
//! released, and `cargo deny`, without which the run fails.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::{debian, dist, frameworks, run};

/// Counts the torture tests first: a filter that matches nothing would pass without a word.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    debian::need_servers()?;
    if let Err(what) = need_deny(root) {
        // Nothing before it needs it.
        println!("{}", run::notice(&format!("this will fail at its end: {what}")));
    }
    println!("building, then counting the tests");
    let listed = run::output(cargo_test(root).args(["--list", "torture"]))?;
    let names = tests_in(&listed);
    if names.is_empty() {
        bail!("no test has torture in its name, so nothing was tortured");
    }
    println!("{} long tests:", names.len());
    names.iter().for_each(|name| println!("  {name}"));
    if let Err(what) = frameworks::prepare(root) {
        println!("{}", run::notice(&format!("frameworks skipped: {what}")));
    }
    let mut test = cargo_test(root);
    test.args(["--nocapture", "torture"]).envs(frameworks::variables(root));
    run::step("torture", &mut test)?;
    features(root)?;
    dist::torture(root)?;
    deny(root)
}

/// The crates with features.
const WITH_FEATURES: [&str; 7] = [
    "semel",
    "semel-cli",
    "semel-config",
    "semel-postgres",
    "semel-redis",
    "semel-sqlite",
    "semel-tower",
];

/// Each crate with none of its features, with each of them, and with all.
fn features(root: &Path) -> anyhow::Result<()> {
    if !run::works(&mut run::cargo(root, &["hack", "--version"])) {
        let install = "cargo install --locked cargo-hack";
        println!("{}", run::notice(&format!("features skipped; install with: {install}")));
        return Ok(());
    }
    let mut hack = run::cargo(root, &["hack", "check", "--each-feature", "--locked"]);
    hack.args(WITH_FEATURES.iter().flat_map(|name| ["--package", name]));
    run::step("features", hack.env("RUSTFLAGS", "-D warnings"))
}

fn need_deny(root: &Path) -> anyhow::Result<()> {
    if !run::works(&mut run::cargo(root, &["deny", "--version"])) {
        bail!(
            "known vulnerabilities are looked for by cargo-deny; install with: cargo install \
             --locked cargo-deny"
        );
    }
    Ok(())
}

/// Known vulnerabilities, withdrawn versions, licences and sources, for every platform. It reads a
/// database of advisories from the network.
fn deny(root: &Path) -> anyhow::Result<()> {
    need_deny(root)?;
    run::step("deny", &mut run::cargo(root, &["deny", "--locked", "check"]))
}

/// This crate is left out: the unit tests of this file have its name in theirs, and they would be
/// counted.
fn cargo_test(root: &Path) -> Command {
    let mut command = run::cargo(root, &["test", "--release", "--workspace", "--locked"]);
    command.args(["--exclude", "xtask", "--"]).env("SEMEL_TORTURE", "1");
    command
}

/// The names in what `cargo test -- --list` prints: lines such as `module::name: test`.
fn tests_in(listed: &str) -> Vec<&str> {
    listed.lines().filter_map(|line| line.strip_suffix(": test")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_tests_is_read_without_its_totals() {
        let listed = "store::a_torture_of_kills: test\n\n1 test, 0 benchmarks\n";
        assert_eq!(tests_in(listed), ["store::a_torture_of_kills"]);
        assert!(tests_in("0 tests, 0 benchmarks\n").is_empty());
    }
}
