//! Writes `docs/reference/cli.md` from the help of the commands, and compares it.

use std::{fs, path::Path};

use clap::{Command, CommandFactory as _};

use super::Cli;

const HEAD: &str = "\
# Commands

The help of every command, as `semel help COMMAND` prints it. This page is generated; the tests
compare it with the program.

[Exit codes](#semel) are at the end of the first section. Commands that work on records take either
a store (`--store`, by default `sqlite:semel.db`) or a running server (`--server`, with the
operator's token in `SEMEL_OPERATOR_TOKEN`); [When a key is held](../guide/operators.md) shows them
at work.
";

/// The page.
fn reference() -> String {
    let mut command = Cli::command().term_width(100).disable_help_subcommand(true);
    command.build();
    let mut text = HEAD.to_owned();
    section(&mut text, &mut command, "semel");
    text
}

/// The help of a command and of those below it.
fn section(text: &mut String, command: &mut Command, name: &str) {
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    for below in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = format!("{name} {}", below.get_name());
        section(text, below, &name);
    }
}

#[test]
fn the_reference_of_commands_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let made = reference();
    if std::env::var_os("SEMEL_BLESS").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let command = "SEMEL_BLESS=1 cargo test -p semel-cli --lib reference";
    assert!(committed == made, "docs/reference/cli.md is stale; run: {command}");
}

#[test]
fn every_command_is_in_the_reference() {
    let page = reference();
    for command in Cli::command().get_subcommands() {
        assert!(page.contains(&format!("\n## semel {}\n", command.get_name())), "{command:?}");
    }
}
