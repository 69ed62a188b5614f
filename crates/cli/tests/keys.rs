//! `semel key`, and the shell examples of the guide to keys.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

#[path = "common/command.rs"]
mod command;

use std::{collections::BTreeSet, env, path::Path, process::Command};

use crate::command::semel_command;

const GUIDE: &str = include_str!("../../../docs/guide/keys.md");

fn key(arguments: &[&str]) -> (Option<i32>, String) {
    let mut semel = semel_command();
    let output = semel.arg("key").args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_examples_of_the_guide_print_what_it_says() {
    let semel = semel_command();
    let program = Path::new(semel.get_program()).parent().unwrap();
    let others = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([program.to_owned()].into_iter().chain(env::split_paths(&others)));
    let block = GUIDE.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let lines: Vec<&str> = block.lines().collect();
    assert_eq!(lines.len(), 8);
    for pair in lines.chunks(2) {
        let command = pair[0].strip_prefix("$ ").unwrap();
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", command]).env("PATH", path.as_ref().unwrap()).output();
        let output = String::from_utf8(output.unwrap().stdout).unwrap();
        if command.starts_with("python3") && output.is_empty() {
            continue;
        }
        assert_eq!(output.trim_end(), pair[1], "{command}");
    }
}

#[test]
fn random_keys_and_keys_by_time_are_uuids() {
    for (kind, version) in [("random", '4'), ("time", '7')] {
        let (code, keys) = key(&[kind, "--count", "100"]);
        assert_eq!(code, Some(0));
        let keys: Vec<&str> = keys.lines().collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), 100);
        assert!(keys.iter().all(|key| key.len() == 36 && key.chars().nth(14) == Some(version)));
        assert!(kind == "random" || keys.is_sorted());
    }
}

#[test]
fn a_key_without_parts_or_with_a_malformed_namespace_is_a_usage_error() {
    assert_eq!(key(&["derive"]).0, Some(2));
    assert_eq!(key(&["derive", "--namespace", "ours", "order-17"]).0, Some(2));
    assert_eq!(key(&["random", "--count", "0"]).0, Some(2));
}
