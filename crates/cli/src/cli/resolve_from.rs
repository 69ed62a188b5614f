//! `semel resolve --from`: held records that the export of a provider names, each with its answer.
//!
//! A row resolves a record only if it is the only row that names it, and the record is the only one
//! that it names. Everything else stays held.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::BufReader,
    path::PathBuf,
    process::ExitCode,
};

use anyhow::{Context as _, anyhow, bail};
use csv::{ByteRecord, ReaderBuilder};
use semel::core::{StateName, canonical};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    command_error::{self, CommandError},
    csv_input::{self, Separator, typed_column, usual_column},
    output::{Output, ProgressLine},
    resolve_many::{Confirmation, find},
    table,
    target::{IncludeAnswer, Target, TargetArgs},
};
use semel_admin::{
    filter::RecordFilter,
    requests::{AnswerInput, AuditNote, RecordTarget, ResolveRequest, ResolvedState},
    responses::RecordSummaryView,
};
use semel_telemetry::escape;

/// The names that a column of keys usually has.
const KEY_COLUMNS: &[&str] = &["idempotency_key", "key", "request_id"];

/// Maximum number of records of each kind that are named.
const NAMED_MAX: usize = 5;

/// Arguments for the export of a provider.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// A CSV export with a header line: each row that names exactly one held record completes it
    #[arg(long, value_name = "FILE.csv")]
    #[arg(conflicts_with_all = ["key", "released", "header", "body", "body_file"])]
    pub(super) from: Option<PathBuf>,
    /// The names in the CSV are unique among all callers. Without it, `--caller` says whose export
    /// this is
    #[arg(long, requires = "from")]
    names_are_global: bool,
    /// What names a record in the CSV: its key, or a captured value of this name
    #[arg(long, value_name = "NAME", default_value = "key", requires = "from")]
    by: String,
    /// The column that names the record. Default: the one with the name of the captured value, or a
    /// usual name for keys
    #[arg(long, value_name = "COLUMN", requires = "from")]
    column: Option<String>,
    /// A captured value and the column that must agree with it, such as amount=Amount; may be
    /// repeated
    #[arg(long, value_name = "NAME=COLUMN", value_parser = pair, requires = "from")]
    agree: Vec<(String, String)>,
    /// The column with the body of each answer. Default: a JSON object with all columns as texts
    #[arg(long, value_name = "COLUMN", requires = "from")]
    body_column: Option<String>,
    /// Column separator of the CSV: a character, or comma, semicolon or tab. Default: the most
    /// frequent one in the first line
    #[arg(long, value_name = "CHARACTER", value_parser = Separator::parse, requires = "from")]
    separator: Option<Separator>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, column) = text.split_once('=').ok_or("write it like NAME=COLUMN")?;
    Ok((name.to_owned(), column.to_owned()))
}

/// A held record, and what names it.
struct NamedRecord {
    line: RecordSummaryView,
    captured: BTreeMap<String, String>,
    /// The rows that name it.
    rows: u64,
    answer: Option<Result<AnswerInput, Disagreement>>,
}

/// The captured value that differs.
struct Disagreement(String);

/// Where each is in a row.
struct ExportColumns {
    names: Vec<String>,
    name: usize,
    agree: Vec<(String, usize)>,
    body: Option<usize>,
}

/// What an export says about the held records.
#[derive(Default)]
struct ExportMatches {
    found: Vec<(RecordSummaryView, AnswerInput)>,
    /// Several rows name the record, or several records have the same name.
    ambiguous: Vec<RecordSummaryView>,
    differing: Vec<(RecordSummaryView, String)>,
    /// No row names it, or it has no such captured value.
    missing: Vec<RecordSummaryView>,
}

/// The preview and the result, for programs.
#[derive(Serialize)]
struct ExportSummary<'a> {
    found: usize,
    ambiguous: usize,
    differing: usize,
    missing: usize,
    /// `None` in a preview.
    #[serde(skip_serializing_if = "Option::is_none")]
    applied: Option<usize>,
    /// Records that changed after the preview.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    stale: &'a [RecordSummaryView],
}

pub(super) async fn run(
    target_args: &TargetArgs,
    filter: RecordFilter,
    export: &ExportArgs,
    status: u16,
    note: AuditNote,
    consent: Confirmation,
) -> Result<ExitCode, CommandError> {
    let filter = RecordFilter { state: Some(StateName::Held), ..filter };
    let filter = filter.validate().map_err(|wrong| anyhow!(wrong))?;
    if filter.caller.is_none() && !export.names_are_global {
        let message = "two callers may use the same name for two operations: say whose export this \
                       is with --caller, or --names-are-global if no two callers share a name";
        return Err(anyhow!(message).into());
    }
    let (target, output) = (target_args.open().await?, target_args.output());
    let held = find(&target, &filter).await?;
    if held.more {
        let message = "too many held records match to tell whether a name is unique: narrow the \
                       filter, for example with --scope or --since";
        return Err(anyhow!(message).into());
    }
    let records = held.records;
    if records.is_empty() {
        return Err(CommandError::Absent);
    }
    let matches = read(&target, records, export, status).await?;
    if !output.json {
        matches.print(output)?;
    } else if consent.dry_run || matches.found.is_empty() {
        output.json(&matches.summary(None, &[]))?;
    }
    if consent.dry_run || matches.found.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let number = matches.found.len();
    let follows = format!(
        "{number} records become completed; every retry of each gets the answer of its row from \
         now on, with status {status}."
    );
    output.confirm(&follows, consent.yes)?;
    let resolved = resolve(&target, &matches, &note).await;
    target.print_audit_path();
    let (applied, stale) = resolved?;
    if output.json {
        output.json(&matches.summary(Some(applied), &stale))?;
    } else {
        output.line(&format!("done: {applied} records became completed"))?;
        print_named(output, "not modified, because they changed after the preview", &stale)?;
    }
    Ok(if stale.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(command_error::EXIT_STALE) })
}

/// Resolves the records one after the other. Returns how many, and those that had changed.
async fn resolve(
    target: &Target,
    matches: &ExportMatches,
    note: &AuditNote,
) -> Result<(usize, Vec<RecordSummaryView>), CommandError> {
    let (mut applied, mut stale) = (0_usize, Vec::new());
    let mut progress = ProgressLine::new();
    for (line, answer) in &matches.found {
        let record = RecordTarget {
            scope: line.scope.clone(),
            caller: line.caller.clone(),
            key: line.key.clone(),
            state: line.state.clone(),
            fence: line.fence,
        };
        let (to, note) = (ResolvedState::Completed, note.clone());
        match target.resolve(ResolveRequest::new(record, to, Some(answer.clone()), note)).await {
            Ok(_) => applied = applied.saturating_add(1),
            Err(CommandError::Stale(_) | CommandError::Absent) => stale.push(line.clone()),
            Err(CommandError::Other(error)) => {
                let left = matches.found.len().saturating_sub(applied).saturating_sub(stale.len());
                let text =
                    format!("{applied} records were resolved, {left} are left; run it again");
                return Err(error.context(text).into());
            }
        }
        progress.show(&format!("{applied} of {}", matches.found.len()));
    }
    Ok((applied, stale))
}

/// Reads the export against the held records.
async fn read(
    target: &Target,
    records: Vec<RecordSummaryView>,
    export: &ExportArgs,
    status: u16,
) -> Result<ExportMatches, CommandError> {
    let mut matches = ExportMatches::default();
    let mut named: HashMap<String, NamedRecord> = HashMap::new();
    let mut shared: HashMap<String, Vec<RecordSummaryView>> = HashMap::new();
    let mut progress = ProgressLine::new();
    for (number, line) in records.into_iter().enumerate() {
        progress.show(&format!("{number} records read"));
        let captured = if export.by == "key" && export.agree.is_empty() {
            BTreeMap::new()
        } else {
            let (scope, caller, key) = (&line.scope, &line.caller, &line.key);
            target.record(scope, caller, key, IncludeAnswer::No).await?.captured
        };
        let name = match &*export.by {
            "key" => Some(line.key.clone()),
            name => captured.get(name).cloned(),
        };
        match name {
            None => matches.missing.push(line),
            Some(name) => match named.remove(&name) {
                Some(other) => shared.entry(name).or_default().extend([other.line, line]),
                None if shared.contains_key(&name) => {
                    shared.entry(name).or_default().push(line);
                }
                None => {
                    let record = NamedRecord { line, captured, rows: 0, answer: None };
                    named.insert(name, record);
                }
            },
        }
    }
    drop(progress);
    let mut named_twice = Vec::new();
    read_rows(export, status, |name, row| {
        if let Some(record) = named.get_mut(name) {
            record.rows = record.rows.saturating_add(1);
            record.answer = Some(row(&record.captured)?);
        } else if shared.contains_key(name) {
            named_twice.push(name.to_owned());
        }
        Ok(())
    })?;
    for NamedRecord { line, rows, answer, .. } in named.into_values() {
        match (rows, answer) {
            (1, Some(Ok(answer))) => matches.found.push((line, answer)),
            (1, Some(Err(Disagreement(what)))) => matches.differing.push((line, what)),
            (0, _) | (_, None) => matches.missing.push(line),
            _ => matches.ambiguous.push(line),
        }
    }
    for (name, lines) in shared {
        let is_named = named_twice.contains(&name);
        if is_named { &mut matches.ambiguous } else { &mut matches.missing }.extend(lines);
    }
    matches.found.sort_by(|(one, _), (other, _)| one.key.cmp(&other.key));
    Ok(matches)
}

type AnswerOfRow<'r> =
    dyn Fn(&BTreeMap<String, String>) -> anyhow::Result<Result<AnswerInput, Disagreement>> + 'r;

/// Reads all rows. `take` gets what each row names, and a function that makes its answer.
fn read_rows(
    export: &ExportArgs,
    status: u16,
    mut take: impl FnMut(&str, &AnswerOfRow<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let path = export.from.clone().unwrap_or_default();
    let name = path.display().to_string();
    let file = File::open(&path).with_context(|| name.clone())?;
    let (input, separator) =
        csv_input::head(BufReader::with_capacity(1 << 16, file)).with_context(|| name.clone())?;
    let delimiter = export.separator.unwrap_or(separator).0;
    let mut reader = ReaderBuilder::new().delimiter(delimiter).flexible(true).from_reader(input);
    let columns =
        ExportColumns::find(reader.byte_headers()?, export).with_context(|| name.clone())?;
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).with_context(|| name.clone())? {
        let line = record.position().map_or(0, csv::Position::line);
        let row = columns.texts(&record).with_context(|| format!("{name}, line {line}"))?;
        let Some(named) = row.get(columns.name).map(|text| text.trim()) else { continue };
        if named.is_empty() {
            continue;
        }
        let answer = |captured: &BTreeMap<String, String>| {
            let answer = columns.answer(&row, status, captured);
            answer.with_context(|| format!("{name}, line {line}"))
        };
        take(named, &answer)?;
    }
    Ok(())
}

impl ExportColumns {
    fn find(head: &ByteRecord, export: &ExportArgs) -> anyhow::Result<Self> {
        let names: Vec<String> =
            head.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
        let name = match (&export.column, &*export.by) {
            (Some(column), _) => typed_column(&names, "column", column)?,
            (None, "key") => {
                let usual = usual_column(&names, KEY_COLUMNS);
                let listed = csv_input::listed(&names);
                usual.ok_or_else(|| {
                    anyhow!(
                        "which column has the key? The columns are {listed}. Select one with \
                         --column COLUMN"
                    )
                })?
            }
            (None, captured) => typed_column(&names, "by", captured)?,
        };
        let agree = export.agree.iter().map(|(captured, column)| {
            Ok((captured.clone(), typed_column(&names, "agree", column)?))
        });
        let agree = agree.collect::<anyhow::Result<_>>()?;
        let body = export.body_column.as_deref();
        let body = body.map(|column| typed_column(&names, "body-column", column)).transpose()?;
        Ok(Self { names, name, agree, body })
    }

    fn texts<'r>(&self, record: &'r ByteRecord) -> anyhow::Result<Vec<&'r str>> {
        let texts: Result<Vec<&str>, _> = record.iter().map(str::from_utf8).collect();
        let texts = texts.context("a column is not UTF-8")?;
        if texts.len() != self.names.len() {
            bail!("it has {} columns instead of {}", texts.len(), self.names.len());
        }
        Ok(texts)
    }

    fn answer(
        &self,
        row: &[&str],
        status: u16,
        captured: &BTreeMap<String, String>,
    ) -> anyhow::Result<Result<AnswerInput, Disagreement>> {
        for (name, column) in &self.agree {
            let shown = row.get(*column).map_or("", |text| text.trim());
            if !captured.get(name).is_some_and(|value| is_equal(value, shown)) {
                return Ok(Err(Disagreement(name.clone())));
            }
        }
        let body = match self.body.and_then(|column| row.get(column)) {
            Some(body) => (*body).to_owned(),
            None => {
                let pairs = self.names.iter().zip(row);
                let all: Map<String, Value> =
                    pairs.map(|(name, text)| (name.clone(), (*text).into())).collect();
                Value::Object(all).to_string()
            }
        };
        let is_json = canonical::json_text(body.as_bytes()).is_ok();
        let content_type = if is_json { "application/json" } else { "text/plain; charset=utf-8" };
        let headers = vec![("content-type".to_owned(), content_type.to_owned())];
        let answer = AnswerInput { status, headers, body: Some(body), body_base64: None };
        answer.read().map_err(|error| anyhow!("{error}"))?;
        Ok(Ok(answer))
    }
}

/// Whether two texts are equal, or the same number: `49.9` and `49.90`.
fn is_equal(one: &str, other: &str) -> bool {
    let number = |text: &str| {
        let is_number = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
        is_number.then(|| canonical::json_text(text.as_bytes()).ok()).flatten()
    };
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

impl ExportMatches {
    fn summary<'a>(
        &self,
        applied: Option<usize>,
        stale: &'a [RecordSummaryView],
    ) -> ExportSummary<'a> {
        ExportSummary {
            found: self.found.len(),
            ambiguous: self.ambiguous.len(),
            differing: self.differing.len(),
            missing: self.missing.len(),
            applied,
            stale,
        }
    }

    fn print(&self, output: Output) -> Result<(), CommandError> {
        let found: Vec<RecordSummaryView> =
            self.found.iter().map(|(line, _)| line.clone()).collect();
        print_named(output, "one row names each of them", &found)?;
        if let Some((_, AnswerInput { body: Some(body), .. })) = self.found.first() {
            let body: String = body.chars().take(200).collect();
            output.line(&format!("  the first answer: {}", escape::line(&body)))?;
        }
        print_named(output, "stay held: more than one row or record of one name", &self.ambiguous)?;
        let differing: Vec<RecordSummaryView> =
            self.differing.iter().map(|(line, _)| line.clone()).collect();
        print_named(output, "stay held: the row does not agree", &differing)?;
        if let Some((_, what)) = self.differing.first() {
            output.line(&format!("  the first in `{}`", escape::line(what)))?;
        }
        print_named(output, "stay held: no row names them", &self.missing)
    }
}

/// Prints how many records there are of a kind, and the first of them.
fn print_named(
    output: Output,
    what: &str,
    records: &[RecordSummaryView],
) -> Result<(), CommandError> {
    if records.is_empty() {
        return Ok(());
    }
    output.line(&format!("{} records: {what}", records.len()))?;
    for line in records.iter().take(NAMED_MAX) {
        let [key, scope] = [&line.key, &line.scope].map(|text| escape::line(text));
        output.line(&format!("  {key} of {} in {scope}", table::caller(&line.caller)))?;
    }
    let others = records.len().saturating_sub(NAMED_MAX);
    if others > 0 {
        output.line(&format!("  and {others} others"))?;
    }
    Ok(())
}
