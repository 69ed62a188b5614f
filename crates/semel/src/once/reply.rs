//! From what an operation said to what the engine records, and from what the engine replies to
//! what the caller is told.

use std::sync::{Arc, Mutex, PoisonError};

use semel_core::{Answer, ExecutionResult, OnUnknown, Policy, Problem, Reply, Verdict};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Lost, OnceError, OnceErrorKind, Outcome, Reason, Refusal, Said, Stop, Unknown,
    record::{self, Joined, Recorded},
    stop::Kind,
};
use crate::Lease;

/// Where the operation leaves a note that it ran, and what it gave: the caller gets the very value
/// and the very error, not a copy that went through the record.
pub(super) struct Slot<T>(Arc<Mutex<Option<Run<T>>>>);

/// A run of this very call.
pub(super) struct Run<T> {
    lease: Lease,
    /// `None` while it runs, and after a panic.
    end: Option<Result<T, Stop>>,
}

impl<T> Slot<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(super) fn put(&self, lease: Lease, end: Option<Result<T, Stop>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Run { lease, end });
    }

    pub(super) fn take(&self) -> Option<Run<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What the engine is to record.
pub(super) fn ended<T: Serialize>(end: &Result<T, Stop>, policy: &Policy) -> ExecutionResult {
    let bytes_max = policy.response_bytes_max;
    let (verdict, answer) = match end {
        Ok(value) => (Verdict::Completed, record::of_value(value, bytes_max)),
        Err(Stop(Kind::Refused(reason))) => {
            (Verdict::Completed, record::of_refusal(reason.as_ref(), bytes_max))
        }
        Err(Stop(Kind::Retry(reason))) => (Verdict::Retry, record::of_retry(reason)),
        Err(Stop(Kind::Unknown(reason))) => (Verdict::Unknown, record::of_unknown(reason)),
    };
    let reason = match verdict {
        Verdict::Unknown => semel_core::Reason::OperationError,
        Verdict::Completed | Verdict::Retry | Verdict::Forget => {
            semel_core::Reason::Declared(verdict)
        }
    };
    ExecutionResult::Answered { verdict, answer, reason }
}

/// What the caller is told.
pub(super) fn outcome<T: DeserializeOwned>(
    reply: Reply,
    run: Option<Run<T>>,
    on_unknown: OnUnknown,
) -> Result<Outcome<T>, OnceError> {
    let Some(Run { lease, end }) = run else { return of_others(reply) };
    let said = Said::of(end);
    if lease.fence().is_none() {
        return Ok(Outcome::Unguarded(said));
    }
    match reply {
        Reply::Ran(_) | Reply::Problem(Problem::UpstreamTimeout | Problem::OperationFailed) => {
            recorded(said, on_unknown)
        }
        Reply::Problem(problem) if !lease.is_lost() => Ok(unrecorded(said, problem, on_unknown)),
        // Another's answer in the record leaves no room for this one, whoever owns it.
        Reply::Joined(_) | Reply::Unguarded(_) | Reply::Replayed(_) | Reply::Problem(_) => {
            Ok(Outcome::Lost(Lost { mine: said, now: Box::new(of_others(reply)) }))
        }
    }
}

/// The call ran the operation, and how it ended is recorded.
fn recorded<T>(said: Said<T>, on_unknown: OnUnknown) -> Result<Outcome<T>, OnceError> {
    let reason = match said {
        Said::Value(value) => return Ok(Outcome::Ran(value)),
        Said::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
        Said::Retry(reason) => return Ok(Outcome::Retry(reason)),
        Said::Unknown(reason) => reason,
    };
    let runs_again = match on_unknown {
        OnUnknown::Hold => Some(false),
        OnUnknown::Rerun => Some(true),
        OnUnknown::Fail => return Err(OnceError::because(OnceErrorKind::Failed, reason)),
    };
    Ok(Outcome::Unknown(Unknown { reason, said: None, ran: true, runs_again }))
}

/// The call ran the operation, but how it ended could not be recorded. That is tried on, so whether
/// what may be rerun will be is open.
fn unrecorded<T>(said: Said<T>, problem: Problem, on_unknown: OnUnknown) -> Outcome<T> {
    let stays = problem == Problem::OutcomeUnknown || on_unknown != OnUnknown::Rerun;
    let (reason, said) = match said {
        Said::Unknown(reason) => (reason, None),
        said @ (Said::Value(_) | Said::Refused(_) | Said::Retry(_)) => {
            let reason = Reason::told("the operation ran, but that could not be recorded".into());
            (reason, Some(said))
        }
    };
    Outcome::Unknown(Unknown { reason, said, ran: true, runs_again: stays.then_some(false) })
}

/// The call did not run the operation, or what it made of it does not count. What the policy of
/// this call says about unknown outcomes says nothing about the one who ran it.
fn of_others<T: DeserializeOwned>(reply: Reply) -> Result<Outcome<T>, OnceError> {
    let answer = match reply {
        Reply::Problem(problem) => return of_problem(problem),
        Reply::Replayed(answer) => return Ok(kept(record::read(&answer)?)),
        Reply::Unguarded(answer) => return Ok(Outcome::Unguarded(unguarded(&answer))),
        Reply::Ran(answer) | Reply::Joined(answer) => answer,
    };
    Ok(match record::read_joined(&answer)? {
        Joined::Kept(recorded) => kept(recorded),
        Joined::Retry(reason) => Outcome::Retry(reason),
        Joined::Unknown(reason) => theirs(reason, None),
    })
}

/// What an unguarded run said that was joined. It ran, and a repeat may run it again: an error that
/// denies this would be wrong.
fn unguarded<T: DeserializeOwned>(answer: &Answer) -> Said<T> {
    match record::read_joined(answer) {
        Ok(Joined::Kept(Recorded::Value(value))) => Said::Value(value),
        Ok(Joined::Kept(Recorded::Refusal(reason))) => {
            Said::Refused(Refusal { reason, replayed: true })
        }
        Ok(Joined::Retry(reason)) => Said::Retry(reason),
        Ok(Joined::Unknown(reason)) => Said::Unknown(reason),
        Err(error) => Said::Unknown(Reason(error.into())),
    }
}

const fn theirs<T>(reason: Reason, runs_again: Option<bool>) -> Outcome<T> {
    Outcome::Unknown(Unknown { reason, said: None, ran: false, runs_again })
}

pub(super) fn kept<T>(recorded: Recorded<T>) -> Outcome<T> {
    match recorded {
        Recorded::Value(value) => Outcome::Replayed(value),
        Recorded::Refusal(reason) => Outcome::Refused(Refusal { reason, replayed: true }),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most problems are those of HTTP")]
fn of_problem<T>(problem: Problem) -> Result<Outcome<T>, OnceError> {
    let unknown = |text: &str, runs_again| Ok(theirs(Reason::told(text.to_owned()), runs_again));
    match problem {
        Problem::InProgress => Ok(Outcome::InProgress),
        Problem::KeyReused => Ok(Outcome::Reused),
        Problem::OutcomeUnknown => unknown("it is held until someone resolves it", Some(false)),
        Problem::OutcomeUnrecorded => unknown("what became of it could not be recorded", None),
        Problem::UpstreamTimeout => unknown("the operation panicked", None),
        Problem::OperationFailed => Err(OnceError::new(OnceErrorKind::Failed)),
        Problem::StoreUnavailable => Err(OnceError::new(OnceErrorKind::StoreUnavailable)),
        Problem::TooManyInFlight => Err(OnceError::new(OnceErrorKind::TooManyInFlight)),
        other => Err(OnceError::because(OnceErrorKind::Refused, other.detail())),
    }
}

#[cfg(test)]
mod tests;
