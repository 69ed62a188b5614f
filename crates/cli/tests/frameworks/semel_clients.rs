//! Semel's own clients: their packages, prepared for the tests here, and their own tests.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

use crate::{HERE, process::prepared};

pub(crate) const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients");

/// A Python with the package `semel`. `None` where there is no Python.
pub(crate) fn python() -> Option<Command> {
    let mut python = Command::new(prepared("SEMEL_TEST_PYTHON")?);
    python.env("PYTHONPATH", format!("{CLIENTS}/python/src"));
    python.env("PYTHONDONTWRITEBYTECODE", "1").env("NO_PROXY", "127.0.0.1");
    Some(python)
}

/// The compiled TypeScript package. `None` where there is no Node.
pub(crate) fn typescript() -> Option<PathBuf> {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();

    let modules = prepared("SEMEL_TEST_NODE_MODULES")?;
    Some(COMPILED.get_or_init(|| compile_typescript(&modules)).clone())
}

/// A program in Node, with the address of the package's module as its argument.
pub(crate) fn node(program: &str) -> Option<Command> {
    let compiled = typescript()?;
    let mut node = Command::new("node");
    node.arg(format!("{HERE}/clients/{program}"));
    node.arg(format!("file://{}", compiled.join("src/index.js").display()));
    Some(node)
}

/// Runs a program that reads one JSON value and writes lines of them.
pub(crate) fn lines(command: &mut Command, input: &Value) -> Vec<Value> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn compile_typescript(modules: &Path) -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("semel-typescript");
    let mut tsc = Command::new(modules.join(".bin/tsc"));
    tsc.args(["--project", &format!("{CLIENTS}/typescript/tsconfig.json")]);
    tsc.arg("--typeRoots").arg(modules.join("@types")).arg("--outDir").arg(&place);
    succeeds(&mut tsc);
    std::fs::write(place.join("package.json"), "{\"type\":\"module\"}").unwrap();
    place
}

pub(crate) fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&text));
}

#[test]
fn the_python_package_passes_its_tests() {
    let Some(mut python) = python() else { return };
    succeeds(python.current_dir(format!("{CLIENTS}/python")).args(["-m", "unittest"]));
}

#[test]
fn the_python_package_is_typed_strictly() {
    let Some(mut python) = python() else { return };
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/semel-mypy");
    succeeds(python.current_dir(format!("{CLIENTS}/python")).args([
        "-m",
        "mypy",
        "--cache-dir",
        cache,
    ]));
}

#[test]
fn the_typescript_package_passes_its_tests() {
    let Some(compiled) = typescript() else { return };
    let mut node = Command::new("node");
    node.env("SEMEL_VECTORS", format!("{CLIENTS}/vectors.json"));
    succeeds(node.arg("--test").arg(compiled.join("test")));
}
