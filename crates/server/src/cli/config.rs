//! `semel config`. Check, print or explain a configuration.

use std::process::ExitCode;

/// What can be typed after `semel config`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
