//! `cargo xtask bench`: the benchmarks, optimised.

use std::path::Path;
use std::process::Command;

use anyhow::bail;

use crate::{debian, run};

/// The families of benchmarks.
const FAMILIES: [&str; 9] = [
    "core",
    "sqlite",
    "postgres",
    "transaction",
    "layer",
    "gateway",
    "api",
    "instructions",
    "attacks",
];

/// Words that make the benchmark program do something else.
const ROLES: [&str; 6] = ["help", "-h", "--help", "--serve", "--serve-upstream", "--drive"];

/// Runs the benchmarks named, or all of them. The names are the benchmark program's own words.
pub(crate) fn run(root: &Path, names: &[&str]) -> anyhow::Result<()> {
    if !root.join("bench/Cargo.toml").exists() {
        bail!("there is nothing to measure yet: the package semel-bench (bench/) does not exist");
    }
    if wants("postgres", names) || wants("transaction", names) {
        debian::need_servers()?;
    }
    if wants("gateway", names) {
        install("nginx-light", &["nginx", "/usr/sbin/nginx"], "-v")?;
    }
    if wants("instructions", names) {
        install("valgrind", &["valgrind"], "--version")?;
    }
    if ["gateway", "api", "instructions", "attacks"].iter().any(|family| wants(family, names)) {
        let build = ["build", "--release", "--locked", "-p", "semel-cli"];
        run::step("gateway", &mut run::cargo(root, &build))?;
    }
    let mut bench = run::cargo(root, &["run", "--release", "--locked", "-p", "semel-bench", "--"]);
    run::step("bench", bench.args(names))
}

/// Whether a family is measured: it was named, or one of its parts, or nothing was.
fn wants(family: &str, names: &[&str]) -> bool {
    let is_of = |family: &str| names.iter().any(|name| name.starts_with(family));
    let nothing = !FAMILIES.iter().any(|family| is_of(family));
    !names.iter().any(|name| ROLES.contains(name)) && (is_of(family) || nothing)
}

/// Installs a package unless one of its programs is here. Where that cannot be done, the benchmark
/// says what is missing.
fn install(package: &str, programs: &[&str], version: &str) -> anyhow::Result<()> {
    let found = |program: &&str| run::works(Command::new(program).arg(version));
    if !programs.iter().any(found) {
        debian::install(&[package])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_measured_is_made_ready() {
        for words in [&[][..], &["--quick"], &["gateway"], &["core", "gateway.slow"]] {
            assert!(wants("gateway", words), "{words:?}");
        }
        for words in [&["core"][..], &["layer.sqlite", "--quick"], &["help"], &["--drive", "80"]] {
            assert!(!wants("gateway", words), "{words:?}");
        }
        assert!(wants("postgres", &["postgres.redis"]) && !wants("postgres", &["gateway"]));
        assert!(wants("instructions", &["instructions.claim"]));
        assert!(!wants("instructions", &["gateway.unique"]));
    }
}
