//! `cargo xtask bench`: the benchmarks, optimised.

use std::path::Path;

use anyhow::bail;

use crate::run;

/// Runs the benchmarks named, or all of them. The names are the benchmark program's own words.
pub(crate) fn run(root: &Path, names: &[&str]) -> anyhow::Result<()> {
    if !root.join("bench/Cargo.toml").exists() {
        bail!("there is nothing to measure yet: the package semel-bench (bench/) does not exist");
    }
    let mut bench = run::cargo(root, &["run", "--release", "--locked", "-p", "semel-bench", "--"]);
    run::step("bench", bench.args(names))
}
