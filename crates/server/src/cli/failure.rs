//! How an operator's command fails, and its exit code.

use std::process::ExitCode;

use semel::core::StoreError;

use super::screen;
use crate::api::acts::ActError;

/// Exit codes of operators' commands beside 0.
const FAILED: u8 = 1;
const NOT_FOUND: u8 = 3;
pub(super) const STALE: u8 = 4;

/// Why a command was not done.
#[derive(Debug)]
pub(super) enum Failure {
    /// There is no such record.
    Absent,
    /// The record is not what was seen.
    Stale(String),
    /// Anything else.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Other(error.into())
    }
}

impl From<ActError> for Failure {
    fn from(error: ActError) -> Self {
        match error {
            ActError::Absent => Self::Absent,
            ActError::Stale => Self::Stale(error.to_string()),
            ActError::Malformed(_) | ActError::Store(_) | ActError::Audit(_) => {
                Self::Other(error.into())
            }
        }
    }
}

/// Runs a command to its end; what failed becomes a line on stderr, in JSON if that was asked for,
/// and an exit code.
pub(super) fn run(
    json: bool,
    command: impl Future<Output = Result<ExitCode, Failure>>,
) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (code, words) = match runtime.block_on(command) {
        Ok(code) => return Ok(code),
        Err(Failure::Absent) => (NOT_FOUND, "there is no such record".to_owned()),
        Err(Failure::Stale(words)) => (STALE, words),
        Err(Failure::Other(error)) => (FAILED, format!("{error:#}")),
    };
    if json {
        screen::complain_in_json(&words, code);
    } else {
        screen::complain(&words);
    }
    Ok(ExitCode::from(code))
}
