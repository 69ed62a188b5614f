//! Why a step, or an operation, has no result.

use std::{error::Error, fmt};

use serde::{Serialize, de::DeserializeOwned};

/// Why a step ended without a result, and what is known about its effect.
///
/// | a step returns | meaning | what follows |
/// |---|---|---|
/// | [`StepError::refused`] | a final refusal, without effect | recorded, and returned |
/// | [`StepError::retry`] | nothing happened | the step runs again, after a pause |
/// | [`StepError::unknown`], `?` on any error, a panic | the effect is unknown | see below |
///
/// A [`step`] or [`step_tx`] whose effect is unknown runs again after a pause, a [`step_once`]
/// parks the operation.
///
/// An operation that returns a refusal is undone. Any other error runs it again, after a pause.
///
/// [`step`]: crate::Operation::step
/// [`step_tx`]: crate::Operation::step_tx
/// [`step_once`]: crate::Operation::step_once
///
/// It deliberately does not implement [`Error`]: only so can the question mark convert every other
/// error.
#[derive(Clone, PartialEq, Eq)]
pub struct StepError(pub(crate) StepFailure);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepFailure {
    /// The reason as JSON.
    Refused(String),
    Retry(String),
    Unknown(String),
}

impl StepError {
    /// A final refusal, for this reason: anything that serde can write as JSON.
    pub fn refused<R: Serialize + ?Sized>(reason: &R) -> Self {
        let json = serde_json::to_string(reason);
        Self(StepFailure::Refused(json.unwrap_or_else(|_| "null".to_owned())))
    }

    /// Nothing happened, and the step may run again.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(StepFailure::Retry(describe(&*error.into())))
    }

    /// The step began, and its effect is unknown.
    pub fn unknown(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(StepFailure::Unknown(describe(&*error.into())))
    }

    /// A recorded refusal. An operation that an operator turned backward has none.
    pub(crate) fn recorded(json: Option<&str>) -> Self {
        Self(StepFailure::Refused(json.unwrap_or("null").to_owned()))
    }

    /// The reason of a refusal, if it can be read as `R`. `None` for every other error.
    #[must_use]
    pub fn refusal<R: DeserializeOwned>(&self) -> Option<R> {
        match &self.0 {
            StepFailure::Refused(json) => serde_json::from_str(json).ok(),
            StepFailure::Retry(_) | StepFailure::Unknown(_) => None,
        }
    }
}

/// An error and its causes in one line.
fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl<E: Error + Send + Sync + 'static> From<E> for StepError {
    fn from(error: E) -> Self {
        Self::unknown(error)
    }
}

impl fmt::Display for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            StepFailure::Refused(json) => write!(f, "refused: {json}"),
            StepFailure::Retry(why) => write!(f, "nothing happened: {why}"),
            StepFailure::Unknown(why) => write!(f, "the effect is unknown: {why}"),
        }
    }
}

impl fmt::Debug for StepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepError({self})")
    }
}
