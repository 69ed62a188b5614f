//! Commands of the program on PostgreSQL stores.

use std::process::Stdio;

pub(crate) use crate::common::CommandOutput;
use crate::common::{fresh_postgres, semel_command};

/// Runs `semel` with nothing in its environment but these variables.
pub(crate) fn semel(words: &[&str], environment: &[(&str, &str)]) -> CommandOutput {
    let mut command = semel_command();
    command.env_clear().envs(environment.iter().copied()).args(words).stdin(Stdio::null());
    // What is written beside a store by default goes where it is forgotten.
    let folder = tempfile::tempdir().unwrap();
    command.current_dir(folder.path());
    CommandOutput::of(&mut command)
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
