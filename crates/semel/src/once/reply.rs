//! From what an operation said to what the engine records, and from what the engine replies to
//! what the caller is told.

use std::sync::{Arc, Mutex, PoisonError};

use semel_core::{Answer, Ended, OnUnknown, Policy, Problem, Reply, Verdict};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    Lost, OnceError, OnceErrorKind, Outcome, Reason, Refusal, Stop, Unknown,
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
pub(super) fn ended<T: Serialize>(end: &Result<T, Stop>, lease: &Lease, policy: &Policy) -> Ended {
    let bytes_max = policy.response_bytes_max;
    let (verdict, answer) = match end {
        Ok(value) => (Verdict::Completed, record::of_value(value, bytes_max)),
        Err(Stop(Kind::Refused(reason))) => {
            (Verdict::Completed, record::of_refusal(reason.as_ref(), bytes_max))
        }
        Err(Stop(Kind::Retry(reason))) => (Verdict::Retry, record::of_retry(reason)),
        // What is recorded then is told to those who joined, too.
        Err(Stop(Kind::Unknown(_))) if fails(lease, policy) => (Verdict::Unknown, Answer::failed()),
        Err(Stop(Kind::Unknown(reason))) => (Verdict::Unknown, record::of_unknown(reason)),
    };
    Ended::Answered { verdict, answer }
}

/// Whether an unknown outcome is recorded as a failure. Without a fence nothing is recorded.
fn fails(lease: &Lease, policy: &Policy) -> bool {
    policy.on_unknown == OnUnknown::Fail && lease.fence().is_some()
}

/// What the caller is told.
pub(super) fn outcome<T: DeserializeOwned>(
    reply: Reply,
    run: Option<Run<T>>,
    policy: &Policy,
) -> Result<Outcome<T>, OnceError> {
    let Some(run) = run else { return of_others(reply, policy) };
    match reply {
        Reply::Ran(_) | Reply::Problem(Problem::UpstreamTimeout) => of_run(run, policy),
        Reply::Problem(Problem::OutcomeUnrecorded) if !run.lease.is_lost() => {
            Ok(unrecorded(run, policy))
        }
        Reply::Joined(_) | Reply::Replayed(_) | Reply::Problem(_) => {
            let now = Box::new(of_others(reply, policy));
            Ok(Outcome::Lost(Lost { mine: run.end.and_then(Result::ok), now }))
        }
    }
}

/// The call ran the operation, and how it ended is recorded.
fn of_run<T>(run: Run<T>, policy: &Policy) -> Result<Outcome<T>, OnceError> {
    let reason = match run.end {
        Some(Ok(value)) => return Ok(Outcome::Ran(value)),
        Some(Err(Stop(Kind::Refused(reason)))) => {
            return Ok(Outcome::Refused(Refusal { reason, replayed: false }));
        }
        Some(Err(Stop(Kind::Retry(reason)))) => return Ok(Outcome::Retry(reason)),
        Some(Err(Stop(Kind::Unknown(reason)))) => reason,
        None => Reason::told("the operation panicked".into()),
    };
    if fails(&run.lease, policy) {
        return Err(OnceError::because(OnceErrorKind::Failed, reason));
    }
    let runs_again = policy.on_unknown == OnUnknown::Rerun || run.lease.fence().is_none();
    Ok(Outcome::Unknown(Unknown { reason, value: None, ran: true, runs_again }))
}

/// The call ran the operation, but how it ended could not be recorded.
fn unrecorded<T>(run: Run<T>, policy: &Policy) -> Outcome<T> {
    let runs_again = policy.on_unknown == OnUnknown::Rerun;
    let (reason, value) = match run.end {
        Some(Err(Stop(Kind::Unknown(reason)))) => (reason, None),
        end => {
            let reason = Reason::told("the operation ran, but that could not be recorded".into());
            (reason, end.and_then(Result::ok))
        }
    };
    Outcome::Unknown(Unknown { reason, value, ran: true, runs_again })
}

/// The call did not run the operation, or what it made of it does not count.
fn of_others<T: DeserializeOwned>(reply: Reply, policy: &Policy) -> Result<Outcome<T>, OnceError> {
    let answer = match reply {
        Reply::Problem(problem) => return of_problem(problem, policy),
        Reply::Replayed(answer) => return Ok(kept(record::read(&answer)?)),
        Reply::Ran(answer) | Reply::Joined(answer) => answer,
    };
    Ok(match record::read_joined(&answer)? {
        Joined::Kept(recorded) => kept(recorded),
        Joined::Retry(reason) => Outcome::Retry(reason),
        Joined::Unknown(reason) => {
            let runs_again = policy.on_unknown == OnUnknown::Rerun;
            Outcome::Unknown(Unknown { reason, value: None, ran: false, runs_again })
        }
    })
}

fn kept<T>(recorded: Recorded<T>) -> Outcome<T> {
    match recorded {
        Recorded::Value(value) => Outcome::Replayed(value),
        Recorded::Refusal(reason) => Outcome::Refused(Refusal { reason, replayed: true }),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "most problems are those of HTTP")]
fn of_problem<T>(problem: Problem, policy: &Policy) -> Result<Outcome<T>, OnceError> {
    let unknown = |text: &str, runs_again| {
        let reason = Reason::told(text.to_owned());
        Ok(Outcome::Unknown(Unknown { reason, value: None, ran: false, runs_again }))
    };
    let rerun = policy.on_unknown == OnUnknown::Rerun;
    match problem {
        Problem::InProgress => Ok(Outcome::InProgress),
        Problem::KeyReused => Ok(Outcome::Reused),
        Problem::OutcomeUnknown => unknown("it is held until someone resolves it", false),
        Problem::OutcomeUnrecorded => unknown("what became of it could not be recorded", rerun),
        Problem::UpstreamTimeout if policy.on_unknown == OnUnknown::Fail => {
            Err(OnceError::because(OnceErrorKind::Failed, "the operation panicked"))
        }
        Problem::UpstreamTimeout => unknown("the operation panicked", rerun),
        Problem::StoreUnavailable => Err(OnceError::new(OnceErrorKind::StoreUnavailable)),
        Problem::TooManyInFlight => Err(OnceError::new(OnceErrorKind::TooManyInFlight)),
        other => Err(OnceError::because(OnceErrorKind::Refused, other.detail())),
    }
}
