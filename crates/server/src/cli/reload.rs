//! `semel reload`. Applies a changed configuration.

use std::process::ExitCode;

/// What can be typed after `semel reload`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
