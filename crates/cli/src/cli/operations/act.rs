//! `semel operations resume`, `undo` and `park`.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use semel::core::Fenced;
use semel_admin::audit::{AuditLog, AuditResult, OperatorAction};
use semel_steps::store::{OperatorStep, OwnedOperation};
use serde_json::json;

use super::OperationsArgs;
use crate::cli::{
    command_error::{self, CommandError},
    target::{self, Operator},
};

/// Arguments of `semel operations resume` and `semel operations undo`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    act: ActArgs,
    /// A step whose outcome is unknown: say what became of it, by --result or --absent
    #[arg(long, value_name = "NAME", requires = "outcome")]
    step: Option<String>,
    /// The step happened, with this result
    #[arg(long, value_name = "JSON", requires = "step", group = "outcome")]
    result: Option<String>,
    /// The step did not happen, and may run again
    #[arg(long, requires = "step", group = "outcome")]
    absent: bool,
}

/// Arguments of `semel operations park`.
#[derive(Debug, clap::Args)]
pub(crate) struct ParkArgs {
    #[command(flatten)]
    act: ActArgs,
}

#[derive(Debug, clap::Args)]
struct ActArgs {
    #[command(flatten)]
    database: OperationsArgs,
    /// The operation, as `semel operations list` prints it
    id: i64,
    /// Reason for the audit log
    #[arg(long, value_name = "TEXT", default_value = "requested by the operator")]
    why: String,
    #[command(flatten)]
    operator: Operator,
}

/// Nothing but that it was done.
struct Acted;

impl AuditResult for Acted {
    fn result(&self) -> String {
        "done".to_owned()
    }
}

pub(super) fn resume(args: ResumeArgs, act: OperatorStep) -> anyhow::Result<ExitCode> {
    let ResumeArgs { act: target, step, result, .. } = args;
    if let Some(result) = &result {
        let read = serde_json::from_str::<serde::de::IgnoredAny>(result);
        read.context("--result is JSON, such as '\"ch_17\"'")?;
    }
    let settle = step.map(|step| OperatorStep::Settle { step, result });
    let acts = settle.into_iter().chain([act]).collect();
    command_error::run(target.database.json, operate(target, acts))
}

pub(super) fn park(args: ParkArgs) -> anyhow::Result<ExitCode> {
    let act = OperatorStep::Park(args.act.why.clone());
    command_error::run(args.act.database.json, operate(args.act, vec![act]))
}

async fn operate(args: ActArgs, acts: Vec<OperatorStep>) -> Result<ExitCode, CommandError> {
    let ActArgs { database, id, why, operator } = args;
    let (output, operations) = (database.output(), database.open()?);
    let audit = AuditLog::at(semel_config::default_audit_path(&database.url()?));
    let who = target::user(&operator.name());
    let seen = operations.read(id).await?.ok_or(CommandError::Absent)?;
    let owned = OwnedOperation { id, fence: seen.fence };
    for act in &acts {
        let name = match act {
            OperatorStep::Resume => "operation-resume",
            OperatorStep::Undo => "operation-undo",
            OperatorStep::Park(_) => "operation-park",
            OperatorStep::Settle { .. } => "operation-settle",
        };
        let to = Some(format!("{} {}", seen.name, seen.key));
        let (who, why, answer) = (who.clone(), why.clone(), None);
        let action = OperatorAction { who, act: name, record: None, to, answer, why };
        let doing = async {
            match operations.operate(owned, act).await? {
                Fenced::Applied => Ok(Acted),
                Fenced::Lost => bail!(refusal(act, seen.state.as_str())),
            }
        };
        if let Err(error) = audit.run_logged(action, doing).await? {
            return Err(CommandError::Stale(error.to_string()));
        }
    }
    let row = operations.read(id).await?.ok_or(CommandError::Absent)?;
    if output.json {
        output.json(&json!({ "operation": row }))?;
    } else {
        let (state, direction) = (row.state.as_str(), row.direction.as_str());
        output.line(&format!("done: operation {id} is {state}, {direction}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refusal(act: &OperatorStep, state: &str) -> String {
    match act {
        OperatorStep::Settle { step, .. } => {
            format!("the operation is {state}, or has no step `{step}` whose outcome is unknown")
        }
        OperatorStep::Resume | OperatorStep::Undo | OperatorStep::Park(_) => {
            format!("the operation was {state} and may have changed: list it again")
        }
    }
}
