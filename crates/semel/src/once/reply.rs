//! From the result of an operation to what the engine records, and from the engine's reply to the
//! outcome for the caller.

use semel_core::{Answer, ExecutionResult, OnUnknown, Policy, Problem, Reply, Verdict};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    FailureCause, OnceError, OnceErrorKind, OperationError, Outcome, Overtaken, Refusal, RunReport,
    Unknown,
    operation_error::OperationErrorKind,
    record::{self, JoinedOutcome, RecordedOutcome},
};
use crate::OwnExecution;

/// The result that the engine records.
pub(super) fn execution_result<T: Serialize>(
    end: &Result<T, OperationError>,
    policy: &Policy,
) -> ExecutionResult {
    let bytes_max = policy.response_bytes_max;
    let (verdict, answer) = match end {
        Ok(value) => (Verdict::Completed, record::of_value(value, bytes_max)),
        Err(OperationError(OperationErrorKind::Refused(reason))) => {
            (Verdict::Completed, record::of_refusal(reason.as_ref(), bytes_max))
        }
        Err(OperationError(OperationErrorKind::Retry(reason))) => {
            (Verdict::Retry, record::of_retry(reason))
        }
        Err(OperationError(OperationErrorKind::Unknown(reason))) => {
            (Verdict::Unknown, record::of_unknown(reason))
        }
    };
    let reason = match verdict {
        Verdict::Unknown => semel_core::Reason::OperationError,
        Verdict::Completed | Verdict::Retry | Verdict::Forget => {
            semel_core::Reason::Declared(verdict)
        }
    };
    ExecutionResult::Answered { verdict, answer, reason }
}

/// The outcome for the caller.
pub(super) fn outcome<T: DeserializeOwned>(
    reply: Reply,
    run: Option<OwnExecution<Result<T, OperationError>>>,
    on_unknown: OnUnknown,
) -> Result<Outcome<T>, OnceError> {
    let Some(OwnExecution { lease, value }) = run else { return outcome_of_other_run(reply) };
    let report = RunReport::of(value);
    if lease.fence().is_none() {
        return Ok(Outcome::Unguarded(report));
    }
    match reply {
        Reply::Ran(_) | Reply::Problem(Problem::UpstreamTimeout | Problem::OperationFailed) => {
            recorded(report, on_unknown)
        }
        Reply::Problem(problem) if !lease.is_lost() => Ok(unrecorded(report, problem, on_unknown)),
        // Another answer in the record excludes this one, whichever run owns it.
        Reply::Joined(_)
        | Reply::Unguarded(_)
        | Reply::Replayed(_)
        | Reply::Limited(_)
        | Reply::Problem(_) => Ok(Outcome::Overtaken(Overtaken {
            mine: report,
            now: Box::new(outcome_of_other_run(reply)),
        })),
    }
}

/// This call ran the operation, and its end is recorded.
fn recorded<T>(report: RunReport<T>, on_unknown: OnUnknown) -> Result<Outcome<T>, OnceError> {
    let reason = match report {
        RunReport::Value(value) => return Ok(Outcome::Ran(value)),
        RunReport::Refused(refusal) => return Ok(Outcome::Refused(refusal)),
        RunReport::Retry(reason) => return Ok(Outcome::Retry(reason)),
        RunReport::Unknown(reason) => reason,
    };
    let runs_again = match on_unknown {
        OnUnknown::Hold => Some(false),
        OnUnknown::Rerun => Some(true),
        OnUnknown::Fail => return Err(OnceError::because(OnceErrorKind::Failed, reason)),
    };
    Ok(Outcome::Unknown(Unknown { reason, report: None, ran: true, runs_again }))
}

/// This call ran the operation, but its end could not be recorded. Recording is retried, so it is
/// open whether a rerun is possible.
fn unrecorded<T>(report: RunReport<T>, problem: Problem, on_unknown: OnUnknown) -> Outcome<T> {
    let stays = problem == Problem::OutcomeUnknown || on_unknown != OnUnknown::Rerun;
    let (reason, report) = match report {
        RunReport::Unknown(reason) => (reason, None),
        report @ (RunReport::Value(_) | RunReport::Refused(_) | RunReport::Retry(_)) => {
            let reason =
                FailureCause::from_text("the operation ran, but that could not be recorded".into());
            (reason, Some(report))
        }
    };
    Outcome::Unknown(Unknown { reason, report, ran: true, runs_again: stays.then_some(false) })
}

/// This call did not run the operation, or its run does not count. The policy of this call does not
/// apply to the execution that counts.
fn outcome_of_other_run<T: DeserializeOwned>(reply: Reply) -> Result<Outcome<T>, OnceError> {
    let answer = match reply {
        Reply::Problem(problem) => return outcome_of_problem(problem),
        Reply::Limited(refusal) => return outcome_of_problem(refusal.problem()),
        Reply::Replayed(answer) => return Ok(replayed_outcome(record::read(&answer)?)),
        Reply::Unguarded(answer) => return Ok(Outcome::Unguarded(unguarded(&answer))),
        Reply::Ran(answer) | Reply::Joined(answer) => answer,
    };
    Ok(match record::read_joined(&answer)? {
        JoinedOutcome::Kept(recorded) => replayed_outcome(recorded),
        JoinedOutcome::Retry(reason) => Outcome::Retry(reason),
        JoinedOutcome::Unknown(reason) => unknown_of_other_run(reason, None),
    })
}

/// The report of an unguarded run that was joined. It ran, and a repeat may run it again: an error
/// that denies this would be wrong.
fn unguarded<T: DeserializeOwned>(answer: &Answer) -> RunReport<T> {
    match record::read_joined(answer) {
        Ok(JoinedOutcome::Kept(RecordedOutcome::Value(value))) => RunReport::Value(value),
        Ok(JoinedOutcome::Kept(RecordedOutcome::Refusal(reason))) => {
            RunReport::Refused(Refusal { reason, is_replayed: true })
        }
        Ok(JoinedOutcome::Retry(reason)) => RunReport::Retry(reason),
        Ok(JoinedOutcome::Unknown(reason)) => RunReport::Unknown(reason),
        Err(error) => RunReport::Unknown(FailureCause(error.into())),
    }
}

const fn unknown_of_other_run<T>(reason: FailureCause, runs_again: Option<bool>) -> Outcome<T> {
    Outcome::Unknown(Unknown { reason, report: None, ran: false, runs_again })
}

pub(super) fn replayed_outcome<T>(recorded: RecordedOutcome<T>) -> Outcome<T> {
    match recorded {
        RecordedOutcome::Value(value) => Outcome::Replayed(value),
        RecordedOutcome::Refusal(reason) => Outcome::Refused(Refusal { reason, is_replayed: true }),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most problems are those of HTTP")]
fn outcome_of_problem<T>(problem: Problem) -> Result<Outcome<T>, OnceError> {
    let unknown = |text: &str, runs_again| {
        Ok(unknown_of_other_run(FailureCause::from_text(text.to_owned()), runs_again))
    };
    match problem {
        Problem::InProgress => Ok(Outcome::InProgress),
        Problem::KeyReused => Ok(Outcome::KeyReused),
        Problem::OutcomeUnknown => unknown("it is held until someone resolves it", Some(false)),
        Problem::OutcomeUnrecorded => unknown("its outcome could not be recorded", None),
        Problem::UpstreamTimeout => unknown("the operation panicked", None),
        Problem::OperationFailed => Err(OnceError::new(OnceErrorKind::Failed)),
        Problem::StoreUnavailable => Err(OnceError::new(OnceErrorKind::StoreUnavailable)),
        Problem::TooManyInFlight => Err(OnceError::new(OnceErrorKind::TooManyInFlight)),
        other => Err(OnceError::because(OnceErrorKind::Refused, other.detail())),
    }
}

#[cfg(test)]
mod tests;
