//! `semel man`. Writes a man page for the program and for each of its commands.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::Cli;

/// Arguments of `semel man`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Existing folder for `semel.1`, `semel-serve.1` and so on
    folder: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Packages must not differ by the help command, whose pages repeat all others.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.folder)
        .with_context(|| format!("cannot write to {}", args.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
