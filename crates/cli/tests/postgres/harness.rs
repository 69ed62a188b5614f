//! The program, and what it said.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::fresh_postgres;

/// What the program said.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `semel` with nothing in its environment but these variables.
pub(crate) fn semel(words: &[&str], environment: &[(&str, &str)]) -> CommandOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
    command.env_clear().envs(environment.iter().copied()).args(words).stdin(Stdio::null());
    // What is written beside a store by default goes where it is forgotten.
    let folder = tempfile::tempdir().unwrap();
    command.current_dir(folder.path());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}

/// Runs `semel` on a store.
pub(crate) fn on(store: &str, words: &[&str]) -> CommandOutput {
    let (command, words) = words.split_first().unwrap();
    semel(&[&[*command, "--store", store], words].concat(), &[])
}

/// A schema with a store in it: its address for the superuser, and its name.
pub(crate) fn made() -> (String, String) {
    let url = fresh_postgres();
    let (_, schema) = url.split_once("?schema=").unwrap();
    let schema = schema.to_owned();
    (url, schema)
}

impl CommandOutput {
    #[track_caller]
    pub(crate) fn assert_exit(&self, code: i32) -> &Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
