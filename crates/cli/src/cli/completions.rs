//! `semel completions`. Prints a script that completes commands and options in a shell.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::Cli;

/// Arguments of `semel completions`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "semel", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
