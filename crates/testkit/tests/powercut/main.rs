//! Tests of the simulated disk: with plain file operations whose durable state is known, and with
//! `SQLite`, which must keep every acknowledged commit with `synchronous=FULL` and must lose some
//! with a weaker setting.
//!
//! The children run this binary: the tests called `*_child` do nothing unless the parent has set
//! their variable. The tests need a 64-bit Linux.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test may panic and report")]

mod files;
mod sqlite;

use semel_testkit::powercut::{Options, Shim};
use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

const BUILD: &str = "POWERCUT_TEST_BUILD";

#[test]
fn a_missing_compiler_is_reported() {
    let empty = tempfile::tempdir().unwrap();
    let run =
        rerun("build_child").env(BUILD, empty.path()).env("PATH", empty.path()).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("need a C compiler called `cc`"), "{text}");
}

#[test]
fn build_child() {
    let Some(dir) = env::var_os(BUILD).map(PathBuf::from) else { return };
    write_line(&Shim::build(&dir).unwrap_err().to_string());
}

#[test]
fn overlapping_directories_and_percentages_above_100_are_refused() {
    let disk = Disk::new();
    let refused = |options: &Options| {
        shim().apply(&mut Command::new("true"), options).unwrap_err().kind()
            == io::ErrorKind::InvalidInput
    };
    assert!(refused(&Options::new(disk.watch(), disk.watch().join("below"))));
    assert!(refused(&Options {
        fail_sync_percent: 60,
        ambiguous_sync_percent: 41,
        ..disk.options()
    }));
}

/// A watched directory and its shadow.
struct Disk {
    root: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn watch(&self) -> PathBuf {
        self.root.path().join("watch")
    }

    fn shadow(&self) -> PathBuf {
        self.root.path().join("shadow")
    }

    fn options(&self) -> Options {
        Options::new(self.watch(), self.shadow())
    }
}

fn shim() -> Shim {
    Shim::build(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

/// A command that runs one of the `*_child` tests of this binary.
fn rerun(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// Writes one line to the parent, in one write.
fn write_line(line: &str) {
    io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}
