//! `semel delete --caller`. Deletes the records of a caller, after a preview.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::anyhow;
use semel_admin::{
    filter::RecordFilter,
    requests::{AuditNote, DeleteRequest, RecordTarget},
    responses::RecordSummaryView,
};
use semel_telemetry::escape;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{
    command_error::{self, CommandError},
    output::{Output, ProgressLine},
    resolve_many::{self, Confirmation, FilteredRecords},
    table,
    target::{Target, TargetArgs},
};

/// Minimum time per record: at most 200 a second are deleted, so that claims do not slow down.
const DELETE_INTERVAL: Duration = Duration::from_millis(5);

/// The state of a record that is not deleted, because it may still be running.
const IN_FLIGHT: &str = "in_flight";

/// The records that a command would delete.
#[derive(Serialize)]
struct DeletionPreview {
    matched: usize,
    /// Whether more records match than one command deletes.
    more: bool,
    /// Number of records that the store examined.
    examined: u64,
    groups: Vec<StateGroup>,
}

/// Records of one scope in one state.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct StateGroup {
    scope: String,
    state: String,
    count: usize,
}

/// The result of a command.
#[derive(Default, Serialize)]
struct DeleteSummary {
    matched: usize,
    deleted: usize,
    /// Left alone, because they may still be running.
    in_flight: usize,
    /// Left alone, because they changed after the preview.
    stale: usize,
}

pub(super) async fn run(
    target_args: &TargetArgs,
    filter: RecordFilter,
    note: AuditNote,
    consent: Confirmation,
) -> Result<ExitCode, CommandError> {
    let filter = filter.validate().map_err(|wrong| anyhow!(wrong))?;
    let (target, output) = (target_args.open().await?, target_args.output());
    let found = resolve_many::find(&target, &filter).await?;
    if found.records.is_empty() {
        return Err(CommandError::Absent);
    }
    let preview = preview(&found);
    if !output.json {
        print_preview(&preview, output)?;
    } else if consent.dry_run {
        output.json(&preview)?;
    }
    if consent.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let number = table::number(resolve_many::count(preview.matched));
    let follows = format!(
        "{number} records are deleted, except those in flight; the next request with one of their \
         keys runs AGAIN."
    );
    output.confirm(&follows, consent.yes)?;
    let mut summary = DeleteSummary { matched: preview.matched, ..DeleteSummary::default() };
    let done = delete(&target, found.records, &note, &mut summary).await;
    target.print_audit_path();
    match done {
        Ok(()) => print_summary(output, &summary),
        Err(CommandError::Other(error)) => {
            let deleted = table::number(resolve_many::count(summary.deleted));
            let progress =
                format!("{deleted} records were deleted; run the command again to delete the rest");
            Err(CommandError::Other(error.context(progress)))
        }
        Err(other) => Err(other),
    }
}

/// Deletes one record after the other, as they were seen in the preview.
async fn delete(
    target: &Target,
    records: Vec<RecordSummaryView>,
    note: &AuditNote,
    summary: &mut DeleteSummary,
) -> Result<(), CommandError> {
    let (mut progress, all) = (ProgressLine::new(), records.len());
    for (index, line) in records.into_iter().enumerate() {
        if line.state == IN_FLIGHT {
            summary.in_flight = summary.in_flight.saturating_add(1);
            continue;
        }
        let next = Instant::now() + DELETE_INTERVAL;
        let RecordSummaryView { scope, caller, key, state, fence, .. } = line;
        let seen = RecordTarget { scope, caller, key, state, fence };
        match target.delete(DeleteRequest::new(seen, note.clone())).await {
            Ok(_) => summary.deleted = summary.deleted.saturating_add(1),
            Err(CommandError::Absent | CommandError::Stale(_)) => {
                summary.stale = summary.stale.saturating_add(1);
            }
            Err(failure) => return Err(failure),
        }
        progress.show(&format!("{index} of {all}"));
        sleep_until(next).await;
    }
    Ok(())
}

fn preview(found: &FilteredRecords) -> DeletionPreview {
    let mut groups: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in &found.records {
        let count = groups.entry((&line.scope, &line.state)).or_default();
        *count = count.saturating_add(1);
    }
    let groups = groups.into_iter().map(|((scope, state), count)| StateGroup {
        scope: scope.to_owned(),
        state: state.to_owned(),
        count,
    });
    DeletionPreview {
        matched: found.records.len(),
        more: found.more,
        examined: found.examined,
        groups: groups.collect(),
    }
}

fn print_preview(preview: &DeletionPreview, output: Output) -> Result<(), CommandError> {
    let matched = table::number(resolve_many::count(preview.matched));
    output.line(&format!("{matched} records match:"))?;
    for StateGroup { scope, state, count } in &preview.groups {
        let count = table::number(resolve_many::count(*count));
        output.line(&format!("  {count:>6}  {}  {state}", escape::line(scope)))?;
    }
    if preview.more {
        output.line(&format!("more records match; these are the first {matched}"))?;
    }
    Ok(())
}

/// Prints the result. Records that were left are not a failure, but set the exit code for scripts.
fn print_summary(output: Output, summary: &DeleteSummary) -> Result<ExitCode, CommandError> {
    if output.json {
        output.json(summary)?;
    } else {
        let number = |count: usize| table::number(resolve_many::count(count));
        output.line(&format!("done: {} records were deleted", number(summary.deleted)))?;
        if summary.in_flight > 0 {
            output.line(&format!("left, because in flight: {}", number(summary.in_flight)))?;
        }
        if summary.stale > 0 {
            let stale = number(summary.stale);
            output.line(&format!("left, because they changed after the preview: {stale}"))?;
        }
    }
    Ok(match summary.in_flight.saturating_add(summary.stale) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(command_error::EXIT_STALE),
    })
}
