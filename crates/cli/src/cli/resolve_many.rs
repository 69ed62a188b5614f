//! `semel resolve` without a key: many held records at once, after a preview.

use std::{cmp::Reverse, collections::BTreeMap, process::ExitCode};

use anyhow::anyhow;
use semel::core::{StateName, store::PAGE_MAX};
use serde::Serialize;

use super::{
    command_error::{self, CommandError},
    output::{Output, ProgressLine, Style},
    table,
    target::{Target, TargetArgs},
};
use semel_admin::{
    filter::RecordFilter,
    requests::{AnswerInput, AuditNote, ResolveManyRequest, ResolvedState, SeenRecord},
    responses::{RecordSummaryView, ResolveManyView},
    time_or_age,
};
use semel_telemetry::escape;

/// Maximum number of records that one command resolves or deletes.
const RECORDS_MAX: usize = 10_000;

/// Maximum number of examples in a preview, and of changed records in a summary.
const EXAMPLES_MAX: usize = 5;

/// Maximum number of groups in a preview.
const GROUPS_MAX: usize = 20;

/// The new state of the records, with the author and the reason.
pub(super) struct ResolveOutcome {
    pub(super) to: ResolvedState,
    pub(super) answer: Option<AnswerInput>,
    pub(super) note: AuditNote,
}

/// Options of the confirmation prompt.
#[derive(Clone, Copy)]
pub(super) struct Confirmation {
    pub(super) dry_run: bool,
    pub(super) yes: bool,
}

/// The records that a command would resolve.
#[derive(Serialize)]
struct Preview<'a> {
    matched: usize,
    /// Whether more records match than one command resolves.
    more: bool,
    /// Number of records that the store examined.
    examined: u64,
    groups: Vec<PreviewGroup>,
    examples: &'a [RecordSummaryView],
}

/// Records of one scope with one reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct PreviewGroup {
    count: usize,
    scope: String,
    reason: String,
    /// Claim times of the oldest and the newest record.
    oldest: String,
    newest: String,
}

/// The result of a command.
#[derive(Serialize)]
struct ResolveSummary {
    matched: usize,
    #[serde(flatten)]
    done: ResolveManyView,
}

pub(super) async fn run(
    target_args: &TargetArgs,
    filter: RecordFilter,
    outcome: ResolveOutcome,
    consent: Confirmation,
) -> Result<ExitCode, CommandError> {
    let filter = RecordFilter { state: Some(StateName::Held), ..filter };
    let filter = filter.validate().map_err(|wrong| anyhow!(wrong))?;
    let (target, output) = (target_args.open().await?, target_args.output());
    let found = find(&target, &filter).await?;
    if found.records.is_empty() {
        return Err(CommandError::Absent);
    }
    let preview = found.preview();
    if !output.json {
        preview.print(output)?;
    } else if consent.dry_run {
        output.json(&preview)?;
    }
    if consent.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let matched = found.records.len();
    output.confirm(&confirmation_prompt(matched, &outcome), consent.yes)?;
    let ResolveOutcome { to, answer, note: AuditNote { why, who } } = outcome;
    let records = found.records.into_iter().map(seen_record).collect();
    let request = ResolveManyRequest { records, to, answer, why, who };
    let done = {
        let mut progress = ProgressLine::new();
        let all = table::number(count(matched));
        let report = |done: usize| {
            progress.show(&format!("{} of {all}", table::number(count(done))));
        };
        target.resolve_many(request, report).await
    };
    target.print_audit_path();
    match done {
        Ok(done) => print_summary(output, to, &ResolveSummary { matched, done }),
        Err((done, failure)) => Err(interrupted(&ResolveSummary { matched, done }, failure)),
    }
}

/// The records that a filter matches.
pub(super) struct FilteredRecords {
    pub(super) records: Vec<RecordSummaryView>,
    pub(super) more: bool,
    pub(super) examined: u64,
}

/// The first records that a filter matches, at most as many as one command changes.
pub(super) async fn find(
    target: &Target,
    filter: &RecordFilter,
) -> Result<FilteredRecords, CommandError> {
    let mut found = FilteredRecords { records: Vec::new(), more: false, examined: 0 };
    let (mut after, mut progress) = (None, ProgressLine::new());
    loop {
        let page = target.list(filter, after.as_deref(), PAGE_MAX).await?;
        found.examined = found.examined.saturating_add(page.examined);
        found.records.extend(page.records);
        let (number, examined) = (found.records.len(), table::number(found.examined));
        progress.show(&format!("examined {examined} records, {number} match"));
        after = page.next;
        if after.is_none() || number > RECORDS_MAX {
            break;
        }
    }
    found.more = after.is_some() || found.records.len() > RECORDS_MAX;
    found.records.truncate(RECORDS_MAX);
    Ok(found)
}

impl FilteredRecords {
    fn preview(&self) -> Preview<'_> {
        Preview {
            matched: self.records.len(),
            more: self.more,
            examined: self.examined,
            groups: groups(&self.records),
            examples: self.records.get(..EXAMPLES_MAX).unwrap_or(&self.records),
        }
    }
}

/// The records by scope and reason, the largest group first.
fn groups(records: &[RecordSummaryView]) -> Vec<PreviewGroup> {
    let mut groups: BTreeMap<(&str, &str), PreviewGroup> = BTreeMap::new();
    for line in records {
        let (scope, reason) = (line.scope.as_str(), reason(line));
        let group = groups.entry((scope, reason)).or_insert_with(|| PreviewGroup {
            count: 0,
            scope: scope.to_owned(),
            reason: reason.to_owned(),
            oldest: line.claimed_at.clone(),
            newest: line.claimed_at.clone(),
        });
        group.count = group.count.saturating_add(1);
        // Times in one format sort as texts.
        group.oldest = line.claimed_at.clone().min(std::mem::take(&mut group.oldest));
        group.newest = line.claimed_at.clone().max(std::mem::take(&mut group.newest));
    }
    let mut groups: Vec<PreviewGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.count));
    groups
}

/// The value of `--reason` that finds the records of this group: the whole text if it has few
/// variants, or the label if the text contains a number of bytes, a duration or free text.
fn reason(line: &RecordSummaryView) -> &str {
    match (line.reason_label.as_deref(), line.reason.as_deref()) {
        (Some("answered" | "grpc-status" | "declared") | None, Some(text)) => text,
        (Some(label), _) => label,
        (None, None) => "none",
    }
}

impl Preview<'_> {
    fn print(&self, output: Output) -> Result<(), CommandError> {
        let matched = table::number(count(self.matched));
        output.line(&format!("{matched} held records match:"))?;
        let mut rows = vec![["COUNT", "SCOPE", "REASON", "OLDEST", "NEWEST"].map(str::to_owned)];
        rows.extend(self.groups.iter().take(GROUPS_MAX).map(PreviewGroup::cells));
        let mut widths = [0; 5];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let [w0, w1, w2, w3, w4] = widths;
        for [number, scope, reason, oldest, newest] in rows {
            let row =
                format!("  {number:>w0$}  {scope:w1$}  {reason:w2$}  {oldest:w3$}  {newest:w4$}");
            output.line(row.trim_end())?;
        }
        let others = self.groups.len().saturating_sub(GROUPS_MAX);
        if others > 0 {
            output.line(&output.paint(Style::Faint, &format!("  and {others} other groups")))?;
        }
        output.line("for example:")?;
        output.line(table::records(self.examples, output).trim_end())?;
        if self.more {
            let first = format!("more records match; these are the first {matched}");
            output.line(&output.paint(Style::Faint, &first))?;
        }
        Ok(())
    }
}

impl PreviewGroup {
    fn cells(&self) -> [String; 5] {
        let time = |text: &str| time_or_age::to_second(text).unwrap_or_default();
        [
            table::number(count(self.count)),
            escape::line(&self.scope),
            escape::line(&self.reason),
            time(&self.oldest),
            time(&self.newest),
        ]
    }
}

/// An answer in a few words.
pub(super) fn describe(answer: &AnswerInput) -> String {
    let headers = match answer.headers.len() {
        0 => String::new(),
        1 => ", 1 header".to_owned(),
        number => format!(", {number} headers"),
    };
    let body = match (&answer.body, &answer.body_base64) {
        (Some(text), _) => escape::line(&text.chars().take(200).collect::<String>()),
        (None, Some(_)) => "(a body that is not text)".to_owned(),
        (None, None) => "(no body)".to_owned(),
    };
    format!("{}{headers}, {body}", answer.status)
}

/// The question that the operator confirms.
fn confirmation_prompt(matched: usize, outcome: &ResolveOutcome) -> String {
    let (number, to) = (table::number(count(matched)), outcome.to.as_str());
    let effect = match &outcome.answer {
        Some(answer) => {
            let answer = describe(answer);
            format!("every retry of each of them gets this answer from now on: {answer}")
        }
        None => {
            "the next retry of each of them runs it again: what did happen happens TWICE".to_owned()
        }
    };
    format!("{number} records become {to}; {effect}.")
}

fn seen_record(line: RecordSummaryView) -> SeenRecord {
    let RecordSummaryView { scope, caller, key, fence, .. } = line;
    SeenRecord { scope, caller, key, fence }
}

/// Prints the result. Changed records are not a failure, but set the exit code for scripts.
fn print_summary(
    output: Output,
    to: ResolvedState,
    summary: &ResolveSummary,
) -> Result<ExitCode, CommandError> {
    let code = match summary.done.stale.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(command_error::EXIT_STALE),
    };
    if output.json {
        output.json(summary)?;
        return Ok(code);
    }
    let ResolveManyView { applied, stale, .. } = &summary.done;
    output.line(&format!("done: {} records became {}", table::number(*applied), to.as_str()))?;
    if !stale.is_empty() {
        let number = table::number(count(stale.len()));
        output.line(&format!("not modified, because they changed after the preview: {number}"))?;
        for name in stale.iter().take(EXAMPLES_MAX) {
            let [key, scope] = [&name.key, &name.scope].map(|text| escape::line(text));
            output.line(&format!("  {key} of {} in {scope}", table::caller(&name.caller)))?;
        }
        let others = stale.len().saturating_sub(EXAMPLES_MAX);
        if others > 0 {
            output.line(&format!("  and {} others", table::number(count(others))))?;
        }
    }
    Ok(code)
}

/// Adds the progress to a failure in the middle of a command.
fn interrupted(summary: &ResolveSummary, failure: CommandError) -> CommandError {
    let ResolveManyView { processed, applied, stale } = &summary.done;
    let left = summary.matched.saturating_sub(*processed);
    let progress = format!(
        "{} records were resolved, {} had changed, {} are left; run the command again to resolve \
         the rest",
        table::number(*applied),
        table::number(count(stale.len())),
        table::number(count(left)),
    );
    match failure {
        CommandError::Other(error) => CommandError::Other(error.context(progress)),
        CommandError::Absent | CommandError::Stale(_) => failure,
    }
}

pub(super) fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
