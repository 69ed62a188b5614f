//! `semel resolve`. Records the outcome of a held key, or of many.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, bail};
use clap::{ArgGroup, builder::NonEmptyStringValueParser};
use semel::core::Key;

use super::{
    command_error::{self, CommandError},
    lookup::{self, FilterArgs},
    resolve_from::{self, ExportArgs},
    resolve_many,
    target::{Operator, TargetArgs},
};
use semel_admin::{
    base64,
    requests::{AnswerInput, AuditNote, ResolveRequest, ResolvedState},
};
use semel_telemetry::escape;

/// How large an answer may be.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Help text below the options.
const MANY: &str = "\
Many at once: without a KEY, every held record that all the filters match is resolved. First comes \
a preview: how many, by scope and reason, and some examples. Only records of the preview are \
resolved, and only those that have not changed since; the others are counted, and the exit code is \
4. With --dry-run nothing is changed.

From an export: --from FILE.csv --completed --status 201 resolves the held records that the CSV \
of a provider names, each with the answer of its row. A record that no row names, that several \
rows name, or whose row does not agree, stays held.";

/// Arguments of `semel resolve`.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("outcome").required(true).args(["completed", "released"]))]
#[command(group = ArgGroup::new("which").required(true).multiple(true)
    .args(["key", "scope", "caller", "reason", "since", "until", "from"]))]
#[command(group = ArgGroup::new("many").multiple(true)
    .args(["reason", "since", "until", "dry_run"]).conflicts_with("key"))]
#[command(after_help = format!("{MANY}\n\n{}", super::EXIT_CODES))]
pub(super) struct Args {
    /// The key; without one, all held records that the filters match
    #[arg(value_parser = lookup::key)]
    key: Option<Key>,
    #[command(flatten)]
    matching: FilterArgs,
    #[command(flatten)]
    export: ExportArgs,
    #[command(flatten)]
    place: TargetArgs,
    /// It happened: every retry gets the answer that you give
    #[arg(long, requires = "status")]
    completed: bool,
    /// It did not happen: the next retry runs it again
    #[arg(long, conflicts_with_all = ["status", "header", "body", "body_file"])]
    released: bool,
    /// The answer's status
    #[arg(long, value_parser = clap::value_parser!(u16).range(200..=599))]
    status: Option<u16>,
    /// A header of the answer, such as 'Content-Type: application/json'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// The answer's body
    #[arg(long, value_name = "TEXT", conflicts_with = "body_file")]
    body: Option<String>,
    /// The answer's body, from a file
    #[arg(long, value_name = "FILE")]
    body_file: Option<PathBuf>,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Show what would be resolved, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it like 'Name: value'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.place.json, resolve(args))
}

async fn resolve(args: Args) -> Result<ExitCode, CommandError> {
    let (to, answer) = match args.status {
        Some(status) if args.completed => (ResolvedState::Completed, Some(answer(&args, status)?)),
        _ => (ResolvedState::Released, None),
    };
    if let Some(answer) = &answer {
        answer.read()?;
    }
    let words = AuditNote { why: args.why, who: args.operator.name() };
    let consent = resolve_many::Confirmation { dry_run: args.dry_run, yes: args.yes };
    if let (Some(_), Some(status)) = (&args.export.from, args.status) {
        let (place, filter) = (&args.place, args.matching.filter());
        return resolve_from::run(place, filter, &args.export, status, words, consent).await;
    }
    let Some(key) = args.key else {
        let outcome = resolve_many::ResolveOutcome { to, answer, note: words };
        return resolve_many::run(&args.place, args.matching.filter(), outcome, consent).await;
    };
    let (target, output) = (args.place.open().await?, args.place.output());
    let record = args.matching.named(key).record(&target).await?;
    let line = &record.line;
    // An operation that broke off while its route only observed has failed, and is held in effect.
    let observed = lookup::scope(&line.scope).is_ok_and(|scope| scope.is_observed());
    if line.state != "held" && !(observed && line.state == "completed") {
        let state = &line.state;
        let stale = format!("the record is {state}; only a held one can be resolved");
        return Err(CommandError::Stale(stale));
    }
    let follows = match &answer {
        Some(answer) => {
            format!("every retry gets this answer from now on: {}", resolve_many::describe(answer))
        }
        None => "the next retry will run it again: if it did happen, it happens twice".to_owned(),
    };
    let follows = format!("{} becomes {}; {follows}.", escape::line(&line.key), to.as_str());
    output.confirm(&follows, args.yes)?;
    let request = ResolveRequest::new(lookup::target(&record), to, answer, words);
    let done = target.resolve(request).await?;
    if output.json {
        output.json(&done)?
    } else {
        output.line(&format!("done: {follows}"))?
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(args: &Args, status: u16) -> anyhow::Result<AnswerInput> {
    let (mut body, mut body_base64) = (args.body.clone(), None);
    if let Some(path) = &args.body_file {
        let bytes = std::fs::read(path)
            .with_context(|| format!("the answer in {} cannot be read", path.display()))?;
        match String::from_utf8(bytes) {
            Ok(text) => body = Some(text),
            Err(error) => body_base64 = Some(base64::encode(error.as_bytes())),
        }
    }
    if body.as_ref().is_some_and(|body| body.len() > BODY_BYTES_MAX)
        || body_base64.as_ref().is_some_and(|text| text.len() > BODY_BYTES_MAX / 3 * 4)
    {
        bail!("an answer has at most 1 MiB");
    }
    Ok(AnswerInput { status, headers: args.header.clone(), body, body_base64 })
}
