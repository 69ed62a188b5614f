//! `semel outbox retry` and `semel outbox drop`.

use std::process::ExitCode;

use semel_admin::audit::{AuditLog, AuditResult, OperatorAction};
use semel_outbox::{OperatorScope, postgres, sqlite};
use serde::Serialize;
use uuid::Uuid;

use super::{DatabaseArgs, OutboxDatabase, client};
use crate::cli::{
    command_error::{self, CommandError},
    target::{self, Operator},
};

/// Which action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Retry,
    Drop,
}

/// Arguments of `semel outbox retry` and `semel outbox drop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The id of the message, as `semel outbox list` prints it
    #[arg(required_unless_present = "parked", conflicts_with = "parked")]
    id: Option<Uuid>,
    /// Every parked message
    #[arg(long)]
    parked: bool,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", default_value = "requested by the operator")]
    why: String,
    #[command(flatten)]
    operator: Operator,
    /// Skip the confirmation prompt
    #[arg(long)]
    yes: bool,
}

/// How many messages an action changed.
#[derive(Clone, Copy, Debug, Serialize)]
struct ChangedMessages {
    messages: u64,
}

impl AuditResult for ChangedMessages {
    fn result(&self) -> String {
        format!("changed {} messages", self.messages)
    }
}

pub(super) fn run(args: Args, act: Act) -> anyhow::Result<ExitCode> {
    command_error::run(args.database.json, change(args, act))
}

async fn change(args: Args, act: Act) -> Result<ExitCode, CommandError> {
    let Args { database, id, why, operator, yes, .. } = args;
    let output = database.output();
    let scope = id.map_or(OperatorScope::Parked, OperatorScope::Id);
    let (name, follows) = match act {
        Act::Retry => ("outbox-retry", "The messages are delivered again, with all attempts."),
        Act::Drop => {
            ("outbox-drop", "The messages are deleted and never delivered. This cannot be undone.")
        }
    };
    if act == Act::Drop {
        output.confirm(follows, yes)?;
    }
    let url = database.url()?;
    let to = Some(id.map_or_else(|| "parked messages".to_owned(), |id| id.to_string()));
    let who = target::user(&operator.name());
    let action = OperatorAction { who, act: name, record: None, to, answer: None, why };
    let audit = AuditLog::at(semel_config::default_audit_path(&url));
    let opened = database.open()?;
    let changed = audit.run_logged(action, run_on(&opened, act, &scope)).await;
    let changed = changed??;
    if changed.messages == 0 && id.is_some() {
        return Err(CommandError::Absent);
    }
    if output.json {
        output.json(&changed)?;
    } else {
        let done = if act == Act::Retry { "to be tried again" } else { "deleted" };
        output.line(&format!("done: {} {done}", changed.messages))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn run_on(
    database: &OutboxDatabase,
    act: Act,
    scope: &OperatorScope,
) -> anyhow::Result<ChangedMessages> {
    let messages = match (database, act) {
        (OutboxDatabase::Postgres(pool), Act::Retry) => {
            postgres::retry(&*client(pool).await?, scope).await?
        }
        (OutboxDatabase::Postgres(pool), Act::Drop) => {
            postgres::drop_messages(&*client(pool).await?, scope).await?
        }
        (OutboxDatabase::Sqlite(connection), Act::Retry) => sqlite::retry(connection, scope)?,
        (OutboxDatabase::Sqlite(connection), Act::Drop) => {
            sqlite::drop_messages(connection, scope)?
        }
    };
    Ok(ChangedMessages { messages })
}
