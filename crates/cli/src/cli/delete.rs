//! `semel delete`. Deletes a record, or those of a caller.

use std::process::ExitCode;

use clap::{ArgGroup, builder::NonEmptyStringValueParser};
use semel::core::Key;

use super::{
    command_error::{self, CommandError},
    delete_caller,
    lookup::{self, FilterArgs},
    resolve_many::Confirmation,
    target::{Operator, TargetArgs},
};
use semel_admin::{
    requests::{AuditNote, DeleteRequest},
    responses::RecordView,
};

/// Help text below the options.
const MANY: &str = "\
All of a caller: without a KEY, every record of the --caller that the other filters match is \
deleted, at most 10,000 by one command and 200 a second. First comes a preview by scope and state. \
Records in flight, and those that have changed since the preview, are left; then the exit code is \
4. With --dry-run nothing is changed.";

/// Arguments of `semel delete`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["key", "caller"]))]
#[command(group = ArgGroup::new("many").multiple(true)
    .args(["reason", "since", "until", "dry_run"]).conflicts_with("key"))]
#[command(after_help = format!("{MANY}\n\n{}", super::EXIT_CODES))]
pub(super) struct Args {
    /// The key; without one, all records of the caller
    #[arg(value_parser = lookup::key)]
    key: Option<Key>,
    #[command(flatten)]
    matching: FilterArgs,
    #[command(flatten)]
    place: TargetArgs,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Show what would be deleted, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, delete(args))
}

async fn delete(args: Args) -> Result<ExitCode, CommandError> {
    let words = AuditNote { why: args.why, who: args.operator.name() };
    let Some(key) = args.key else {
        let consent = Confirmation { dry_run: args.dry_run, yes: args.yes };
        return delete_caller::run(&args.place, args.matching.filter(), words, consent).await;
    };
    let (target, output) = (args.place.open().await?, args.place.output());
    let record = args.matching.named(key).record(&target).await?;
    let follows = match record.line.state.as_str() {
        "in_flight" => return Err(CommandError::Stale(in_flight(&record).to_owned())),
        "completed" => "it was carried out, and the next request with this key runs it AGAIN",
        "held" => "its outcome is unknown, and the next request with this key runs it",
        _ => "the next request with this key runs as if it were the first",
    };
    let follows = format!("The record of {} is deleted; {follows}.", record.line.key);
    output.confirm(&follows, args.yes)?;
    let request = DeleteRequest::new(lookup::target(&record), words);
    let done = target.delete(request).await?;
    target.print_audit_path();
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
