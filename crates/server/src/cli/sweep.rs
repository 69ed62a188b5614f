//! `semel sweep`. Deletes what retention has passed.

use std::process::ExitCode;

/// What can be typed after `semel sweep`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
