//! `cargo xtask fuzz`: the fuzz targets, each for a fixed time.
//!
//! Fuzzing needs a nightly compiler and cargo-fuzz. Nothing is installed here; what is missing is
//! named with the line that installs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::tidy::manifest;
use crate::{Usage, run};

const SECONDS: u32 = 60;

/// What was asked for: one target or all, and how long each.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    target: Option<String>,
    seconds: u32,
}

/// Reads `[TARGET] [--seconds N]`.
pub(crate) fn parse(words: &[&str]) -> Result<Options, Usage> {
    let mut options = Options { target: None, seconds: SECONDS };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if *word == "--seconds" {
            let seconds = words.next().and_then(|value| value.parse().ok());
            options.seconds = seconds
                .filter(|seconds| *seconds > 0)
                .ok_or_else(|| Usage("--seconds takes a whole number above 0".to_owned()))?;
        } else if word.starts_with('-') || options.target.is_some() {
            return Err(Usage(format!("fuzz does not understand {word}")));
        } else {
            options.target = Some((*word).to_owned());
        }
    }
    Ok(options)
}

/// Runs the targets one after the other and stops at the first that finds something.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let path = root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&path)
        .context("there are no fuzz targets: cannot read fuzz/Cargo.toml")?;
    let binaries = manifest::named(&text, "bin").into_iter().map(|(name, _)| name);
    let targets = chosen(&binaries.collect::<Vec<_>>(), options.target.as_deref())?;
    need_tools()?;
    for (done, target) in targets.iter().enumerate() {
        println!("target {} of {}, {} s", done + 1, targets.len(), options.seconds);
        fuzz(root, target, options.seconds)?;
    }
    Ok(())
}

fn chosen(all: &[String], target: Option<&str>) -> anyhow::Result<Vec<String>> {
    match target {
        None if all.is_empty() => bail!("fuzz/Cargo.toml has no [[bin]], so there is no target"),
        None => Ok(all.to_vec()),
        Some(target) if all.iter().any(|known| known == target) => Ok(vec![target.to_owned()]),
        Some(target) => bail!("no fuzz target {target}; there are: {}", all.join(", ")),
    }
}

fn need_tools() -> anyhow::Result<()> {
    if !run::works(nightly().arg("--version")) {
        bail!("fuzzing needs a nightly compiler; install with: rustup toolchain install nightly");
    }
    if !run::works(nightly().args(["fuzz", "--version"])) {
        bail!("fuzzing needs cargo-fuzz; install with: cargo install --locked cargo-fuzz");
    }
    Ok(())
}

/// The corpus grows on this machine and is not kept; the seeds beside it are.
fn fuzz(root: &Path, target: &str, seconds: u32) -> anyhow::Result<()> {
    let corpus = root.join("fuzz/corpus").join(target);
    fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
    let seeds = root.join("fuzz/seeds").join(target);
    let mut command = nightly();
    command.current_dir(root).args(["fuzz", "run", target]).arg(&corpus);
    if seeds.is_dir() {
        command.arg(&seeds);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    run::step(&format!("fuzz {target}"), &mut command)
}

/// The cargo of the nightly toolchain. Cargo has put its own toolchain into the variables of this
/// process; they would win over the word `+nightly` in some of the programs it starts.
fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").arg("+nightly");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_a_target_and_a_time_in_any_order() {
        let both = Options { target: Some("key".to_owned()), seconds: 5 };
        assert_eq!(parse(&["key", "--seconds", "5"]).unwrap(), both);
        assert_eq!(parse(&["--seconds", "5", "key"]).unwrap(), both);
        assert_eq!(parse(&[]).unwrap(), Options { target: None, seconds: 60 });
    }

    #[test]
    fn words_that_are_neither_are_refused() {
        for words in [&["a", "b"][..], &["--second", "5"], &["--seconds", "0"], &["--seconds"]] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn an_unknown_target_is_refused_with_the_known_ones() {
        let all = ["key".to_owned(), "json".to_owned()];
        assert_eq!(chosen(&all, None).unwrap(), all);
        assert_eq!(chosen(&all, Some("json")).unwrap(), ["json"]);
        let error = chosen(&all, Some("jso")).unwrap_err().to_string();
        assert_eq!(error, "no fuzz target jso; there are: key, json");
        assert!(chosen(&[], None).is_err());
    }
}
