//! `semel resolve`. Says what became of a held key.

use std::process::ExitCode;

/// What can be typed after `semel resolve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not yet")
}
