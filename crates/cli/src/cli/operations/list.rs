//! `semel operations list`. Lists operations, or shows one with its steps.

use std::{process::ExitCode, time::Duration};

use semel_steps::store::{OperationFilter, OperationRow, OperationState, StepRow, StepState};
use semel_telemetry::{escape, format_duration};
use serde_json::json;

use super::OperationsArgs;
use crate::cli::{
    command_error::{self, CommandError},
    output::{Output, Style},
};

/// Arguments of `semel operations list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: OperationsArgs,
    /// Show this operation with its steps
    #[arg(conflicts_with_all = ["state", "name", "before"])]
    id: Option<i64>,
    /// Only operations in this state: running, done, undone or parked
    #[arg(long, value_parser = state)]
    state: Option<OperationState>,
    /// Only operations of this name
    #[arg(long)]
    name: Option<String>,
    /// Only operations before this one, the last of an earlier listing
    #[arg(long, value_name = "ID")]
    before: Option<i64>,
    /// Maximum number of operations to list
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

fn state(text: &str) -> Result<OperationState, String> {
    let known = OperationState::parse(text);
    known.ok_or_else(|| "a state is running, done, undone or parked".to_owned())
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.database.json, list(args))
}

async fn list(args: Args) -> Result<ExitCode, CommandError> {
    let Args { database, id, state, name, before, limit } = args;
    let (output, operations) = (database.output(), database.open()?);
    if let Some(id) = id {
        let row = operations.read(id).await?.ok_or(CommandError::Absent)?;
        show(output, &row, &operations.steps(id).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let filter = OperationFilter { state, name, before, limit };
    let rows = operations.list(&filter).await?;
    for row in &rows {
        if output.json {
            output.json(row)?;
        } else {
            output.line(&line(output, row))?;
        }
    }
    let is_full = u32::try_from(rows.len()).is_ok_and(|count| count == limit);
    match rows.last() {
        None if !output.json => output.line("no operation matches")?,
        Some(last) if is_full && !output.json => {
            let more = format!("there may be more: continue with --before {}", last.id);
            output.line(&output.paint(Style::Faint, &more))?;
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn show(output: Output, row: &OperationRow, steps: &[StepRow]) -> anyhow::Result<()> {
    if output.json {
        return output.json(&json!({ "operation": row, "steps": steps }));
    }
    output.line(&line(output, row))?;
    output.line(&format!("input    {}", escape::line(&row.input)))?;
    for (name, value) in [("result", &row.result), ("refusal", &row.refusal)] {
        if let Some(value) = value {
            output.line(&format!("{name:8} {}", escape::line(value)))?;
        }
    }
    for step in steps {
        let tone = match step.state {
            StepState::Begun => Style::Bad,
            StepState::Done => Style::Good,
            StepState::Refused | StepState::Released => Style::Plain,
        };
        let state = output.paint(tone, &format!("{:8}", step.state.as_str()));
        let result = escape::line(step.result.as_deref().unwrap_or_default()).to_string();
        let text =
            format!("  {:4} {state} {}  {result}", step.part.as_str(), escape::line(&step.name));
        output.line(text.trim_end())?;
    }
    Ok(())
}

fn line(output: Output, row: &OperationRow) -> String {
    let OperationRow { id, name, version, key, direction, age_ms, lease_ms, .. } = row;
    let tone = match row.state {
        OperationState::Running => Style::Busy,
        OperationState::Done => Style::Good,
        OperationState::Undone => Style::Plain,
        OperationState::Parked => Style::Bad,
    };
    let state = output.paint(tone, &format!("{:8}", row.state.as_str()));
    let age = format_duration(millis(*age_ms));
    let (name, key) = (escape::line(name), escape::line(key));
    let mut text = format!("{id}  {state} {name} {version}  {key}  {}  {age}", direction.as_str());
    if row.state == OperationState::Running && *lease_ms < 0 {
        let since = format_duration(millis(lease_ms.saturating_neg()));
        text += &format!("  lease expired {since} ago; a process that knows this version takes it");
    }
    if let Some(reason) = &row.reason {
        text += &format!("  {}", escape::line(reason));
    }
    text
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}
