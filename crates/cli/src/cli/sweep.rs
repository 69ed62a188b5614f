//! `semel sweep`. Deletes what retention has passed.

use std::process::ExitCode;

use super::{
    command_error::{self, CommandError},
    output::ProgressLine,
    target::{Operator, TargetArgs},
};
use semel_admin::requests::AuditNote;

/// Arguments of `semel sweep`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: TargetArgs,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", default_value = "requested by the operator")]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, sweep(args))
}

async fn sweep(args: Args) -> Result<ExitCode, CommandError> {
    let (target, output) = (args.place.open().await?, args.place.output());
    let follows = "Records past their retention are deleted. They count as absent already, \
                   so no request will notice.";
    output.confirm(follows, args.yes)?;
    let request = AuditNote { why: args.why, who: args.operator.name() };
    let swept = {
        let mut progress = ProgressLine::new();
        target.sweep(request, |deleted| progress.show(&format!("{deleted} deleted"))).await?
    };
    if output.json {
        output.json(&swept)?;
    } else {
        output.line(&format!("done: {} deleted", swept.deleted))?;
    }
    Ok(ExitCode::SUCCESS)
}
