//! `semel delete`. Deletes a record.

use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;

use super::{
    command_error::{self, CommandError},
    lookup::{self, KeyArgs},
    target::{Operator, TargetArgs},
};
use semel_admin::{
    requests::{AuditNote, DeleteRequest},
    responses::RecordView,
};

/// Arguments of `semel delete`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    named: KeyArgs,
    #[command(flatten)]
    place: TargetArgs,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, delete(args))
}

async fn delete(args: Args) -> Result<ExitCode, CommandError> {
    let (target, output) = (args.place.open().await?, args.place.output());
    let record = args.named.record(&target).await?;
    let follows = match record.line.state.as_str() {
        "in_flight" => return Err(CommandError::Stale(in_flight(&record).to_owned())),
        "completed" => "it was carried out, and the next request with this key runs it AGAIN",
        "held" => "its outcome is unknown, and the next request with this key runs it",
        _ => "the next request with this key runs as if it were the first",
    };
    let follows = format!("The record of {} is deleted; {follows}.", record.line.key);
    output.confirm(&follows, args.yes)?;
    let words = AuditNote { why: args.why, who: args.operator.name() };
    let request = DeleteRequest::new(lookup::target(&record), words);
    let done = target.delete(request).await?;
    if output.json {
        output.json(&done)?
    } else {
        output.line(&format!("done: {follows}"))?
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a record that is in flight is not deleted.
const fn in_flight(record: &RecordView) -> &'static str {
    if record.line.lapsed {
        "its lease has expired, so it need not be deleted: the next retry settles it, and runs it \
         if its route says rerun"
    } else {
        "it may still be running: wait until it is completed, released or held"
    }
}
