//! `semel list`. Lists records.

use std::process::ExitCode;

/// What can be typed after `semel list`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
