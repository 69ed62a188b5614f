//! `cargo xtask test`: everything a change has to pass, cheapest first.
//!
//! Continuous integration runs this and nothing else. It needs the Rust toolchain with its rustfmt
//! and clippy, a C compiler for the bundled SQLite, and the servers that some tests start:
//! PostgreSQL, `PgBouncer`, Redis, NATS. What is missing is installed, or else named before
//! anything starts. With Python, Node, Go, Java and nginx it tests in front of real frameworks as
//! well; without them it says that it did not.
//!
//! `cargo xtask test quick` is what fits between two edits: format, tidy, clippy, unit tests, the
//! conformance kit on SQLite, and the gateway's suite. It takes less than five minutes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::bail;

use crate::{Usage, debian, frameworks, run, tidy};

type Step<'a> = (&'static str, Box<dyn FnOnce() -> anyhow::Result<StepCoverage> + 'a>);

/// The name that asks for the short run.
const QUICK: &str = "quick";

/// What a step that did not fail has done.
#[derive(Debug)]
enum StepCoverage {
    All,
    /// Something that not every machine has was left out: what, in a few words.
    Skipped(String),
}

/// Runs every step until one fails, then shows what ran and how long it took.
pub(crate) fn run(root: &Path, names: &[&str]) -> anyhow::Result<()> {
    if let Some(flag) = names.iter().find(|name| name.starts_with('-')) {
        return Err(Usage(format!("test takes names of tests, not {flag}")).into());
    }
    need_components(root)?;
    need_c_compiler()?;
    let steps = if names == [QUICK] {
        quick_steps(root)
    } else {
        debian::need_servers()?;
        steps(root, names)
    };
    let (rows, outcome) = run_until_failure(steps);
    println!("\n{}", summary(&rows));
    outcome
}

/// The steps in the order that fails early and cheaply.
fn steps<'a>(root: &'a Path, names: &[&str]) -> Vec<Step<'a>> {
    let format = run::cargo(root, &["fmt", "--all", "--check"]);
    // Every failure is worth more than an early one: the next run takes as long as this one.
    let mut test = run::cargo(root, &["test", "--workspace", "--locked", "--no-fail-fast"]);
    if !names.is_empty() {
        test.arg("--").args(names);
    }
    let mut doc = run::cargo(root, &["doc", "--workspace", "--no-deps", "--locked"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let tests = move || {
        // Asked only now, because it is the step before that makes them.
        test.envs(frameworks::variables(root));
        all(run::step("test", &mut test))
    };
    let [format_sqlx, clippy_sqlx, test_sqlx, doc_sqlx] = on_sqlx(root, names);
    vec![
        program("format", format),
        program("format sqlx", format_sqlx),
        ("tidy", Box::new(|| all(tidy::run(root)))),
        program("clippy", clippy(root)),
        program("clippy sqlx", clippy_sqlx),
        ("frameworks", Box::new(|| Ok(prepare_frameworks(root)))),
        ("test", Box::new(tests)),
        program("on PostgreSQL", on_store(root, "postgres", names)),
        program("by PgBouncer", on_store(root, "pgbouncer", names)),
        program("test sqlx", test_sqlx),
        program("doc", doc),
        program("doc sqlx", doc_sqlx),
    ]
}

/// What needs no servers and little time.
fn quick_steps(root: &Path) -> Vec<Step<'_>> {
    let unit = run::cargo(root, &["test", "--workspace", "--locked", "--lib", "--bins"]);
    let kit = ["test", "--locked", "-p", "semel-sqlite", "--test", "conform"];
    let rules = ["test", "--locked", "-p", "semel-core", "--test", "rules", "--test", "flow"];
    let gateway = ["test", "--locked", "-p", "semel-cli", "--test", "gateway", "--test", "config"];
    vec![
        program("format", run::cargo(root, &["fmt", "--all", "--check"])),
        ("tidy", Box::new(|| all(tidy::run(root)))),
        program("clippy", clippy(root)),
        program("unit", unit),
        program("rules", run::cargo(root, &rules)),
        program("kit", run::cargo(root, &kit)),
        program("gateway", run::cargo(root, &gateway)),
    ]
}

fn clippy(root: &Path) -> Command {
    let mut clippy = run::cargo(root, &["clippy", "--workspace", "--all-targets", "--locked"]);
    clippy.args(["--", "-D", "warnings"]);
    clippy
}

/// The same for `crates/sqlx`, which cannot be a member of this workspace.
fn on_sqlx(root: &Path, names: &[&str]) -> [Command; 4] {
    let cargo = |verb: &str, rest: &[&str]| {
        let mut command = run::cargo(root, &[verb, "--manifest-path", "crates/sqlx/Cargo.toml"]);
        // Into the folder of the others by default: most of what it needs is there.
        if std::env::var_os("CARGO_TARGET_DIR").is_none() {
            command.env("CARGO_TARGET_DIR", root.join("target"));
        }
        command.args(rest);
        command
    };
    let format = cargo("fmt", &["--check"]);
    let clippy =
        cargo("clippy", &["--all-targets", "--all-features", "--locked", "--", "-D", "warnings"]);
    let mut test = cargo("test", &["--all-features", "--locked"]);
    if !names.is_empty() {
        test.arg("--").args(names);
    }
    let mut doc = cargo("doc", &["--all-features", "--no-deps", "--locked"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    [format, clippy, test, doc]
}

/// The gateway's end-to-end suite once more, with its records elsewhere than in a file.
fn on_store(root: &Path, store: &str, names: &[&str]) -> Command {
    let suites = ["--test", "gateway", "--test", "operators"];
    let mut test = run::cargo(root, &["test", "--workspace", "--locked"]);
    test.args(suites).env("SEMEL_TEST_STORE", store);
    if !names.is_empty() {
        test.arg("--").args(names);
    }
    test
}

fn program(name: &'static str, mut command: Command) -> Step<'static> {
    (name, Box::new(move || all(run::step(name, &mut command))))
}

fn all(result: anyhow::Result<()>) -> anyhow::Result<StepCoverage> {
    result.map(|()| StepCoverage::All)
}

fn prepare_frameworks(root: &Path) -> StepCoverage {
    match frameworks::prepare(root) {
        Ok(()) => StepCoverage::All,
        Err(why) => StepCoverage::Skipped(why),
    }
}

/// What became of a step, for the summary.
#[derive(Debug, PartialEq, Eq)]
enum StepResult {
    Passed(Duration),
    Skipped(String),
    Failed(Duration),
    NotRun,
}

fn run_until_failure(
    steps: Vec<Step<'_>>,
) -> (Vec<(&'static str, StepResult)>, anyhow::Result<()>) {
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for (name, step) in steps {
        if outcome.is_err() {
            rows.push((name, StepResult::NotRun));
            continue;
        }
        let (result, took) = run::timed(step);
        let (result_of_step, result) = match result {
            Ok(StepCoverage::All) => (StepResult::Passed(took), Ok(())),
            Ok(StepCoverage::Skipped(what)) => (StepResult::Skipped(what), Ok(())),
            Err(error) => (StepResult::Failed(took), Err(error)),
        };
        rows.push((name, result_of_step));
        outcome = result;
    }
    (rows, outcome)
}

fn summary(rows: &[(&'static str, StepResult)]) -> String {
    let line = |(name, result_of_step): &(&str, StepResult)| match result_of_step {
        StepResult::Passed(took) => {
            format!("{name:<11} {} {:>9}", run::good("passed "), run::seconds(*took))
        }
        StepResult::Failed(took) => {
            format!("{name:<11} {} {:>9}", run::bad("FAILED "), run::seconds(*took))
        }
        StepResult::Skipped(what) => {
            format!("{name:<11} {}", run::notice(&format!("skipped: {what}")))
        }
        StepResult::NotRun => format!("{name:<11} not run"),
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A minimal toolchain comes without rustfmt and clippy.
fn need_components(root: &Path) -> anyhow::Result<()> {
    let missing: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(command, _)| !run::works(&mut run::cargo(root, &[command, "--version"])))
        .map(|(_, component)| component)
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(" ");
        bail!("the toolchain lacks {missing}; install with: rustup component add {missing}");
    }
    Ok(())
}

/// The bundled SQLite is C. On Debian the superuser gets the compiler installed, other users get a
/// message that names the package.
fn need_c_compiler() -> anyhow::Result<()> {
    if std::env::var_os("CC").is_some() || has_c_compiler() {
        return Ok(());
    }
    if debian::install(&["gcc", "libc6-dev"])? && has_c_compiler() {
        return Ok(());
    }
    bail!(
        "there is no C compiler `cc`, which the bundled SQLite needs; install one: \
         apt-get install gcc libc6-dev (Debian, Ubuntu), dnf install gcc glibc-devel (Fedora), \
         apk add gcc musl-dev (Alpine), xcode-select --install (macOS)"
    );
}

fn has_c_compiler() -> bool {
    run::works(Command::new("cc").arg("--version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_step_runs_after_the_first_failure() {
        let steps: Vec<Step<'_>> = vec![
            ("one", Box::new(|| Ok(StepCoverage::All))),
            ("two", Box::new(|| bail!("two failed"))),
            ("three", Box::new(|| panic!("must not run"))),
        ];
        let (rows, outcome) = run_until_failure(steps);
        assert_eq!(outcome.unwrap_err().to_string(), "two failed");
        assert!(matches!(rows[0], ("one", StepResult::Passed(_))));
        assert!(matches!(rows[1], ("two", StepResult::Failed(_))));
        assert_eq!(rows[2], ("three", StepResult::NotRun));
    }

    #[test]
    fn a_skipped_step_is_reported_and_the_rest_runs() {
        let steps: Vec<Step<'_>> = vec![
            ("frameworks", Box::new(|| Ok(StepCoverage::Skipped("no node".to_owned())))),
            ("test", Box::new(|| Ok(StepCoverage::All))),
        ];
        let (rows, outcome) = run_until_failure(steps);
        assert!(outcome.is_ok());
        assert_eq!(summary(&rows[..1]), "frameworks  skipped: no node");
        assert!(matches!(rows[1], ("test", StepResult::Passed(_))));
    }

    #[test]
    fn the_summary_names_every_step() {
        let rows = [
            ("format", StepResult::Passed(Duration::from_millis(1250))),
            ("doc", StepResult::NotRun),
        ];
        assert_eq!(summary(&rows), "format      passed      1.2 s\ndoc         not run");
    }
}
