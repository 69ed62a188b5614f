//! `semel outbox list`. Shows the backlog, and the messages whose delivery fails.

use std::process::ExitCode;

use semel_outbox::{AsideEntry, Backlog, postgres, sqlite};
use serde_json::json;

use super::{DatabaseArgs, OutboxDatabase, client};
use crate::cli::command_error::{self, CommandError};

/// How far each bucket is counted.
const COUNT_MAX: i64 = 10_000;

/// Arguments of `semel outbox list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Only messages that wait for an operator
    #[arg(long)]
    parked: bool,
    /// Maximum number of messages to list
    #[arg(long, default_value_t = 50)]
    limit: u32,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    command_error::run(args.database.json, list(args))
}

async fn list(args: Args) -> Result<ExitCode, CommandError> {
    let Args { database, parked, limit } = args;
    let (output, limit) = (database.output(), i64::from(limit));
    let (backlog, entries) = match database.open()? {
        OutboxDatabase::Postgres(pool) => {
            let client = client(&pool).await?;
            let backlog = postgres::backlog(&client, COUNT_MAX).await;
            (backlog, postgres::list(&client, parked, limit).await)
        }
        OutboxDatabase::Sqlite(connection) => {
            let backlog = sqlite::backlog(&connection, COUNT_MAX);
            (backlog, sqlite::list(&connection, parked, limit))
        }
    };
    let backlog = backlog.map_err(anyhow::Error::from)?;
    let entries = entries.map_err(anyhow::Error::from)?;
    let Backlog { waiting, aside, parked, age } = backlog;
    if output.json {
        let seconds = age.as_secs_f64();
        let backlog = json!({ "waiting": waiting, "aside": aside, "parked": parked,
            "oldest_seconds": seconds });
        output.json(&backlog)?;
        for entry in &entries {
            output.json(&document(entry))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let oldest = semel_config::time_text(std::time::Duration::from_secs(age.as_secs()));
    output.line(&format!(
        "waiting {waiting}, of these aside {aside}, parked {parked}; the oldest is {oldest} old"
    ))?;
    for entry in &entries {
        output.line(&line(entry))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn document(entry: &AsideEntry) -> serde_json::Value {
    let AsideEntry { id, topic, key, attempts, parked, reason, age } = entry;
    json!({ "id": id.to_string(), "topic": topic, "key": key, "attempts": attempts,
        "parked": parked, "reason": reason, "age_seconds": age.as_secs_f64() })
}

fn line(entry: &AsideEntry) -> String {
    let AsideEntry { id, topic, key, attempts, parked, reason, .. } = entry;
    let state = match reason {
        _ if *parked => "parked",
        Some(_) => "retried",
        None => "waiting for an earlier one of its key",
    };
    let key = key.as_deref().unwrap_or("-").escape_debug();
    let reason = reason.as_deref().unwrap_or_default();
    format!("{id}  {}  {key}  {state}, attempts {attempts}  {reason}", topic.escape_debug())
}
