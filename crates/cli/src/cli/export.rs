//! `semel export --caller`. Writes everything that is stored about a caller to a file.

use std::{
    io::{BufWriter, IntoInnerError, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use clap::builder::NonEmptyStringValueParser;
use semel::core::{Caller, Scope, store::PAGE_MAX};
use semel_admin::{
    audit::{AuditResult, OperatorAction},
    filter::RecordFilter,
};
use semel_config::private_files::private;
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::{
    command_error::{self, CommandError},
    lookup,
    output::{Output, ProgressLine},
    table,
    target::{self, DEFAULT_STORE, IncludeAnswer, Operator, Target},
};

/// Minimum time per page, so that claims do not slow down.
const PAGE_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `semel export`.
#[derive(Debug, clap::Args)]
#[command(after_help = super::EXIT_CODES)]
pub(super) struct Args {
    /// The file to write, one JSON object per record, answers included; it must not exist, and only
    /// its owner may read it
    file: PathBuf,
    /// The caller whose records are exported, '' for the anonymous one; `semel caller` prints the
    /// name
    #[arg(long, value_parser = lookup::caller)]
    caller: Caller,
    /// Only records of this scope
    #[arg(long, value_parser = lookup::scope)]
    scope: Option<Scope>,
    /// The store to work on: sqlite:PATH, `postgres://USER@HOST/DATABASE`, or env:NAME for the
    /// variable that holds its URL
    #[arg(long, value_name = "URL", default_value = DEFAULT_STORE)]
    store: String,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An export, as it is printed.
#[derive(Debug, Serialize)]
struct ExportView {
    file: PathBuf,
    records: u64,
    /// Number of records that the store examined.
    examined: u64,
}

impl AuditResult for ExportView {
    fn result(&self) -> String {
        format!("exported {}", self.records)
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.json, export(args))
}

async fn export(args: Args) -> Result<ExitCode, CommandError> {
    let output = Output::new(args.json);
    let (store, audit) = target::open_store(&args.store).await?;
    let (caller, scope) = (args.caller.as_str(), args.scope.as_ref().map(Scope::as_str));
    let within = scope.map(|scope| format!(" in {scope}")).unwrap_or_default();
    let act = OperatorAction {
        who: target::user(&args.operator.name()),
        act: "export",
        record: None,
        to: Some(format!("{}: caller {caller:?}{within}", args.file.display())),
        answer: None,
        why: args.why,
    };
    let filter = RecordFilter {
        caller: Some(args.caller.clone()),
        scope: args.scope.clone(),
        ..RecordFilter::default()
    };
    let target = Target::Store { store, audit: audit.clone() };
    let done = audit.run_logged(act, write(&target, &filter, &args.file)).await??;
    target.print_audit_path();
    if output.json {
        output.json(&done)?;
    } else {
        let (file, records) = (done.file.display(), table::number(done.records));
        output.line(&format!("done: {file}, {records} records"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the matching records, one page after the other.
async fn write(target: &Target, filter: &RecordFilter, file: &Path) -> anyhow::Result<ExportView> {
    let shown = file.display();
    let made = private().create_new(true).open(file);
    let made = made.with_context(|| format!("{shown} cannot be created"))?;
    let mut lines = BufWriter::new(made);
    let mut done = ExportView { file: file.to_owned(), records: 0, examined: 0 };
    let (mut after, mut progress) = (None, ProgressLine::new());
    loop {
        let next = Instant::now() + PAGE_INTERVAL;
        let page = target.list(filter, after.as_deref(), PAGE_MAX).await.map_err(plain)?;
        done.examined = done.examined.saturating_add(page.examined);
        for line in &page.records {
            match target.record(&line.scope, &line.caller, &line.key, IncludeAnswer::Yes).await {
                Ok(record) => {
                    serde_json::to_writer(&mut lines, &record)?;
                    lines.write_all(b"\n").with_context(|| format!("{shown} cannot be written"))?;
                    done.records = done.records.saturating_add(1);
                }
                // Deleted meanwhile.
                Err(CommandError::Absent) => {}
                Err(failure) => return Err(plain(failure)),
            }
        }
        let [examined, records] = [done.examined, done.records].map(table::number);
        progress.show(&format!("examined {examined} records, {records} exported"));
        after = page.next;
        if after.is_none() {
            break;
        }
        sleep_until(next).await;
    }
    let written = lines.into_inner().map_err(IntoInnerError::into_error);
    let synced = written.and_then(|file| file.sync_all());
    synced.with_context(|| format!("{shown} cannot be written"))?;
    Ok(done)
}

fn plain(failure: CommandError) -> anyhow::Error {
    match failure {
        CommandError::Absent => anyhow!("there is no such record"),
        CommandError::Stale(words) => anyhow!(words),
        CommandError::Other(error) => error,
    }
}
