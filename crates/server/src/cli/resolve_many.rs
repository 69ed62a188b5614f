//! `semel resolve` without a key: many held records at once, after a preview.

use std::{cmp::Reverse, collections::BTreeMap, process::ExitCode};

use anyhow::anyhow;
use semel::core::{StateName, store::PAGE_MAX};
use serde::Serialize;

use super::{
    desk::{Desk, Place},
    failure::{self, Failure},
    resolve,
    screen::{Progress, Screen, Tone},
    table,
};
use crate::{
    api::{
        filter::RecordFilter,
        form::{AnswerForm, Plain, ResolveMany, SeenRecord, To},
        view::{LineView, ManyView},
    },
    ops::{escape, moment},
};

/// How many records one command resolves at most.
const RECORDS_MAX: usize = 10_000;

/// How many examples and groups a preview shows, and how many changed records a summary names.
const EXAMPLES_MAX: usize = 5;
const GROUPS_MAX: usize = 20;

/// What became of the records, who says so and why.
pub(super) struct Outcome {
    pub(super) to: To,
    pub(super) answer: Option<AnswerForm>,
    pub(super) words: Plain,
}

/// Whether to act, and whether to confirm first.
#[derive(Clone, Copy)]
pub(super) struct Consent {
    pub(super) dry_run: bool,
    pub(super) yes: bool,
}

/// What is about to be resolved.
#[derive(Serialize)]
struct Preview<'a> {
    matched: usize,
    /// Whether more records match than one command resolves.
    more: bool,
    /// How many records the store looked at.
    examined: u64,
    groups: Vec<Group>,
    examples: &'a [LineView],
}

/// Records of one scope with one reason.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Group {
    count: usize,
    scope: String,
    reason: String,
    /// When the oldest and the newest of them were claimed.
    oldest: String,
    newest: String,
}

/// What was done.
#[derive(Serialize)]
struct Summary {
    matched: usize,
    #[serde(flatten)]
    done: ManyView,
}

pub(super) async fn run(
    place: &Place,
    filter: RecordFilter,
    outcome: Outcome,
    consent: Consent,
) -> Result<ExitCode, Failure> {
    let filter = RecordFilter { state: Some(StateName::Held), ..filter };
    let filter = filter.checked().map_err(|wrong| anyhow!(wrong))?;
    let (desk, screen) = (place.open().await?, place.screen());
    let found = find(&desk, &filter).await?;
    if found.records.is_empty() {
        return Err(Failure::Absent);
    }
    let preview = found.preview();
    if !screen.json {
        preview.print(screen)?;
    } else if consent.dry_run {
        screen.json(&preview)?;
    }
    if consent.dry_run {
        return Ok(ExitCode::SUCCESS);
    }
    let matched = found.records.len();
    screen.confirm(&follows(matched, &outcome), consent.yes)?;
    let Outcome { to, answer, words: Plain { why, who } } = outcome;
    let records = found.records.into_iter().map(seen).collect();
    let form = ResolveMany { records, to, answer, why, who };
    let done = {
        let mut progress = Progress::new();
        let all = table::number(count(matched));
        let say = |done: usize| progress.say(&format!("{} of {all}", table::number(count(done))));
        desk.resolve_many(form, say).await
    };
    desk.note_audit();
    match done {
        Ok(done) => summary(screen, to, &Summary { matched, done }),
        Err((done, failure)) => Err(cut_short(&Summary { matched, done }, failure)),
    }
}

/// The records that a filter matches.
struct Found {
    records: Vec<LineView>,
    more: bool,
    examined: u64,
}

async fn find(desk: &Desk, filter: &RecordFilter) -> Result<Found, Failure> {
    let mut found = Found { records: Vec::new(), more: false, examined: 0 };
    let (mut after, mut progress) = (None, Progress::new());
    loop {
        let page = desk.list(filter, after.as_deref(), PAGE_MAX).await?;
        found.examined = found.examined.saturating_add(page.examined);
        found.records.extend(page.records);
        let (number, looked) = (found.records.len(), table::number(found.examined));
        progress.say(&format!("looked at {looked} records, {number} match"));
        after = page.next;
        if after.is_none() || number > RECORDS_MAX {
            break;
        }
    }
    found.more = after.is_some() || found.records.len() > RECORDS_MAX;
    found.records.truncate(RECORDS_MAX);
    Ok(found)
}

impl Found {
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
fn groups(records: &[LineView]) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str), Group> = BTreeMap::new();
    for line in records {
        let (scope, reason) = (line.scope.as_str(), reason(line));
        let group = groups.entry((scope, reason)).or_insert_with(|| Group {
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
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.count));
    groups
}

/// What `--reason` would take to find records of this group: the text where it is one of a few, and
/// the label where the text holds a number of bytes, a duration or free text.
fn reason(line: &LineView) -> &str {
    match (line.reason_label.as_deref(), line.reason.as_deref()) {
        (Some("answered" | "grpc-status" | "declared") | None, Some(text)) => text,
        (Some(label), _) => label,
        (None, None) => "none",
    }
}

impl Preview<'_> {
    fn print(&self, screen: Screen) -> Result<(), Failure> {
        let matched = table::number(count(self.matched));
        screen.line(&format!("{matched} held records match:"))?;
        let mut rows = vec![["COUNT", "SCOPE", "REASON", "OLDEST", "NEWEST"].map(str::to_owned)];
        rows.extend(self.groups.iter().take(GROUPS_MAX).map(Group::cells));
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
            screen.line(row.trim_end())?;
        }
        let others = self.groups.len().saturating_sub(GROUPS_MAX);
        if others > 0 {
            screen.line(&screen.tint(Tone::Faint, &format!("  and {others} other groups")))?;
        }
        screen.line("for example:")?;
        screen.line(table::records(self.examples, screen).trim_end())?;
        if self.more {
            let first = format!("more records match; these are the first {matched}");
            screen.line(&screen.tint(Tone::Faint, &first))?;
        }
        Ok(())
    }
}

impl Group {
    fn cells(&self) -> [String; 5] {
        let time = |text: &str| moment::to_second(text).unwrap_or_default();
        [
            table::number(count(self.count)),
            escape::line(&self.scope),
            escape::line(&self.reason),
            time(&self.oldest),
            time(&self.newest),
        ]
    }
}

/// What a person agrees to.
fn follows(matched: usize, outcome: &Outcome) -> String {
    let (number, to) = (table::number(count(matched)), outcome.to.as_str());
    let follows = match &outcome.answer {
        Some(answer) => {
            let answer = resolve::shown(answer);
            format!("every retry of each of them gets this answer from now on: {answer}")
        }
        None => {
            "the next retry of each of them runs it again: what did happen happens TWICE".to_owned()
        }
    };
    format!("{number} records become {to}; {follows}.")
}

fn seen(line: LineView) -> SeenRecord {
    let LineView { scope, caller, key, fence, .. } = line;
    SeenRecord { scope, caller, key, fence }
}

/// Prints the result. Changed records are not a failure, but set the exit code for scripts.
fn summary(screen: Screen, to: To, summary: &Summary) -> Result<ExitCode, Failure> {
    let code = match summary.done.stale.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(failure::STALE),
    };
    if screen.json {
        screen.json(summary)?;
        return Ok(code);
    }
    let ManyView { applied, stale, .. } = &summary.done;
    screen.line(&format!("done: {} records became {}", table::number(*applied), to.as_str()))?;
    if !stale.is_empty() {
        let number = table::number(count(stale.len()));
        screen.line(&format!("{number} had changed since the preview and were left alone:"))?;
        for name in stale.iter().take(EXAMPLES_MAX) {
            let [key, scope] = [&name.key, &name.scope].map(|text| escape::line(text));
            screen.line(&format!("  {key} of {} in {scope}", table::caller(&name.caller)))?;
        }
        let others = stale.len().saturating_sub(EXAMPLES_MAX);
        if others > 0 {
            screen.line(&format!("  and {} others", table::number(count(others))))?;
        }
    }
    Ok(code)
}

/// A failure after a part was done.
fn cut_short(summary: &Summary, failure: Failure) -> Failure {
    let ManyView { processed, applied, stale } = &summary.done;
    let left = summary.matched.saturating_sub(*processed);
    let so_far = format!(
        "{} records were resolved, {} had changed, {} are left; run the command again for the rest",
        table::number(*applied),
        table::number(count(stale.len())),
        table::number(count(left)),
    );
    match failure {
        Failure::Other(error) => Failure::Other(error.context(so_far)),
        Failure::Absent | Failure::Stale(_) => failure,
    }
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
