//! `semel serve`. Stands in front of an HTTP API.

use std::process::ExitCode;

/// What can be typed after `semel serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
