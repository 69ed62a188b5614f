//! How an operator's command fails, and its exit code.

use std::process::ExitCode;

use semel::core::StoreError;

use super::output;
use semel_admin::actions::ActionError;

/// Exit codes of operators' commands beside 0.
const EXIT_FAILED: u8 = 1;
const EXIT_NOT_FOUND: u8 = 3;
pub(super) const EXIT_STALE: u8 = 4;

/// The doctor recommends changes, or likely duplicates were found.
pub(super) const EXIT_FINDINGS: u8 = 5;

/// Why a command was not done.
#[derive(Debug)]
pub(super) enum CommandError {
    /// There is no such record.
    Absent,
    /// The record is not what was seen.
    Stale(String),
    /// Anything else.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for CommandError {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        Self::Other(error.into())
    }
}

impl From<ActionError> for CommandError {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Absent => Self::Absent,
            ActionError::Stale => Self::Stale(error.to_string()),
            ActionError::Malformed(_) | ActionError::Store(_) | ActionError::AuditLog(_) => {
                Self::Other(error.into())
            }
        }
    }
}

/// Runs a command to its end; what failed becomes a line on stderr, in JSON if that was asked for,
/// and an exit code.
pub(super) fn run(
    json: bool,
    command: impl Future<Output = Result<ExitCode, CommandError>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (code, words) = match runtime.block_on(command) {
        Ok(code) => return Ok(code),
        Err(CommandError::Absent) => (EXIT_NOT_FOUND, "there is no such record".to_owned()),
        Err(CommandError::Stale(words)) => (EXIT_STALE, words),
        Err(CommandError::Other(error)) => (EXIT_FAILED, format!("{error:#}")),
    };
    if json {
        output::print_error_json(&words, code);
    } else {
        output::print_error(&words);
    }
    Ok(ExitCode::from(code))
}
