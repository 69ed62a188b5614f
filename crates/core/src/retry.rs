//! When a client sends a request again: attempts, backoff with jitter, deadline and retry budget.
//!
//! A pure rule. The driver sends the attempts, sleeps and counts time; it reports how each attempt
//! ended and receives a [`RetryDecision`]. The clients in Rust, Python and TypeScript follow it
//! number by number: `clients/vectors.json` is generated from it.
//!
//! ```
//! use std::time::Duration;
//! use semel_core::retry::{AttemptOutcome, AttemptTiming, RetryBudget, RetryDecision, RetryPolicy};
//! use semel_core::retry::{ResponseSignals, RetryState};
//!
//! let policy = RetryPolicy::SEMEL;
//! let mut budget = RetryBudget::new(policy.budget);
//! let mut call = RetryState::begin(&mut budget, Duration::ZERO);
//!
//! let at = |seconds| AttemptTiming::at(Duration::from_secs(seconds), 0.5);
//! let decision = policy.decide(&mut call, &mut budget, &AttemptOutcome::Broken, at(1));
//! assert_eq!(decision, RetryDecision::Wait(Duration::from_millis(25)));
//!
//! let answer = AttemptOutcome::Answered(ResponseSignals::of_status(201));
//! assert_eq!(policy.decide(&mut call, &mut budget, &answer, at(2)), RetryDecision::Done);
//! ```
//!
//! # The rule of [`RetryPolicy::SEMEL`]
//!
//! The first row that fits:
//!
//! | an attempt ended with | decision |
//! |---|---|
//! | a status below 400 | done |
//! | `x-should-retry: false`, or else `stripe-should-retry: false` | done: the answer is final |
//! | the same with `true`, at 409 and 423 | waits |
//! | the same with `true`, at another status | retries |
//! | 409 or 423 with `Retry-After` or `retry-after-ms` | waits |
//! | 408, 425, 429, 500, 502, 503, 504 | retries |
//! | any other status, 410 and 422 among them | done: the answer is final |
//! | no connection, a broken connection, a timeout | retries |
//!
//! *Retry* is bounded by the attempts, the deadline and the budget; *wait* by the deadline alone,
//! because the operation runs and the server says when to ask again.
//!
//! The delay before retry number *n* is random between 0 and `50 ms · 2ⁿ⁻¹`, at most 20 s; after a
//! 429 the base is 1 s. While it waits the upper bound is 1 s. What the server asks for is added to
//! it, so that clients that were all refused at once do not all return at once.

mod budget;
mod policy;
mod signals;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use budget::{BudgetRule, RetryBudget};
pub use policy::{Backoff, Jitter, RetryPolicy, RetryRule};
pub use signals::ResponseSignals;

/// The upper bound of the random part of a delay while an operation runs elsewhere.
const WAIT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How far above the client's own delay the `aws` preset follows `x-amz-retry-after`.
const AWS_RETRY_AFTER_SPAN: Duration = Duration::from_secs(5);

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// No byte of the request was sent: no address, no connection, no TLS session.
    NotSent,
    /// The connection broke after a byte was sent, or in the middle of the answer.
    Broken,
    /// The answer was not complete within the timeout of the attempt.
    TimedOut,
    /// A complete answer.
    Answered(ResponseSignals),
}

/// When an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttemptTiming {
    /// On a monotonic clock with any origin, the same for all calls of one budget.
    pub now: Duration,
    /// Since the call began.
    pub elapsed: Duration,
    /// At least 0 and below 1, uniformly distributed.
    pub random: f64,
}

impl AttemptTiming {
    /// The end of an attempt of a call that began at the origin of the clock.
    #[must_use]
    pub const fn at(now: Duration, random: f64) -> Self {
        Self { now, elapsed: now, random }
    }
}

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryDecision {
    /// The answer is final.
    Done,
    /// Send the request again after this delay.
    Wait(Duration),
    /// The attempt failed, and there will not be another one.
    GiveUp(GiveUpReason),
}

/// Why a call ends without a final answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GiveUpReason {
    /// All attempts were made.
    Attempts,
    /// The next attempt would begin after the deadline of the call.
    Deadline,
    /// The retry budget of the client is used up.
    Budget,
    /// The server asked for no further attempt (gRPC's negative push-back).
    Refused,
}

impl GiveUpReason {
    /// The name in the vector file and in the other languages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Refused => "refused",
        }
    }
}

/// What is remembered of a logical call between its attempts.
#[derive(Clone, Debug)]
pub struct RetryState {
    /// Attempts that count towards [`RetryPolicy::attempts_max`].
    attempts: u32,
    /// Retries since the backoff was last reset.
    retries: u32,
    /// Tokens paid for the last retry.
    paid: Option<u32>,
}

impl RetryState {
    /// A call whose first attempt is sent now.
    #[must_use]
    pub fn begin(budget: &mut RetryBudget, now: Duration) -> Self {
        budget.on_first_attempt(now);
        Self { attempts: 1, retries: 0, paid: None }
    }

    /// Attempts so far, without those that only waited.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// What an outcome means under a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Final {
        success: bool,
    },
    /// The operation runs; its answer comes later.
    Running,
    Retryable {
        throttled: bool,
    },
    /// The server forbids a retry.
    Refused,
}

impl RetryPolicy {
    /// What to do after an attempt that ended like this.
    pub fn decide(
        &self,
        call: &mut RetryState,
        budget: &mut RetryBudget,
        outcome: &AttemptOutcome,
        at: AttemptTiming,
    ) -> RetryDecision {
        let meaning = self.rule.meaning(outcome);
        let throttled = match meaning {
            Meaning::Final { success } => {
                if success {
                    budget.on_success(call.paid);
                }
                return RetryDecision::Done;
            }
            Meaning::Running => false,
            Meaning::Retryable { throttled } => throttled,
            Meaning::Refused => {
                budget.on_failure();
                return RetryDecision::GiveUp(GiveUpReason::Refused);
            }
        };
        let waits = meaning == Meaning::Running;
        if !waits {
            budget.on_failure();
            if call.attempts >= self.attempts_max {
                return RetryDecision::GiveUp(GiveUpReason::Attempts);
            }
        }
        let delay = self.delay(call, outcome, meaning, at.random);
        if self.deadline.is_some_and(|deadline| at.elapsed.saturating_add(delay) >= deadline) {
            return RetryDecision::GiveUp(GiveUpReason::Deadline);
        }
        if !waits {
            let Some(paid) = budget.withdraw(at.now, throttled) else {
                return RetryDecision::GiveUp(GiveUpReason::Budget);
            };
            call.paid = Some(paid);
            call.attempts = call.attempts.saturating_add(1);
        }
        call.retries = call.retries.saturating_add(1);
        if self.rule.pushback(outcome).is_some() {
            call.retries = 0;
        }
        RetryDecision::Wait(delay)
    }

    /// The delay before the next attempt.
    fn delay(
        &self,
        call: &RetryState,
        outcome: &AttemptOutcome,
        meaning: Meaning,
        random: f64,
    ) -> Duration {
        let throttled = meaning == Meaning::Retryable { throttled: true };
        let mut bound = self.backoff.bound(call.retries, throttled);
        if meaning == Meaning::Running {
            bound = bound.min(WAIT_BACKOFF_MAX);
        }
        let own = self.backoff.jitter.apply(bound, self.backoff.base, random);
        let AttemptOutcome::Answered(signals) = outcome else { return own };
        match self.rule {
            RetryRule::Semel => own.saturating_add(signals.retry_after.unwrap_or_default()),
            RetryRule::Aws => match signals.aws_retry_after {
                Some(asked) => asked.clamp(own, own.saturating_add(AWS_RETRY_AFTER_SPAN)),
                None => own,
            },
            RetryRule::Stripe => own,
            RetryRule::Grpc => self.rule.pushback(outcome).unwrap_or(own),
        }
    }
}

impl RetryRule {
    fn meaning(self, outcome: &AttemptOutcome) -> Meaning {
        let AttemptOutcome::Answered(signals) = outcome else {
            return Meaning::Retryable { throttled: false };
        };
        let done = Meaning::Final { success: signals.status < 400 };
        let failed = Meaning::Retryable { throttled: signals.status == 429 };
        match self {
            Self::Semel => semel(signals, done, failed),
            Self::Aws => match signals.status {
                429 | 500 | 502 | 503 | 504 => failed,
                _ => done,
            },
            Self::Stripe => {
                let retries = matches!(signals.status, 409 | 500..);
                if signals.stripe_should_retry.unwrap_or(retries) {
                    Meaning::Retryable { throttled: false }
                } else {
                    done
                }
            }
            Self::Grpc => grpc(signals),
        }
    }

    /// The delay that a gRPC server asks for.
    fn pushback(self, outcome: &AttemptOutcome) -> Option<Duration> {
        let AttemptOutcome::Answered(signals) = outcome else { return None };
        let asked = if self == Self::Grpc { signals.grpc_pushback } else { None };
        asked.flatten()
    }
}

fn semel(signals: &ResponseSignals, done: Meaning, failed: Meaning) -> Meaning {
    let locked = matches!(signals.status, 409 | 423);
    let asked = signals.x_should_retry.or(signals.stripe_should_retry);
    match (asked, signals.status) {
        (_, ..400) | (Some(false), _) => done,
        (Some(true), _) if locked => Meaning::Running,
        (None, _) if locked && signals.retry_after.is_some() => Meaning::Running,
        (Some(true), _) | (None, 408 | 425 | 429 | 500 | 502 | 503 | 504) => failed,
        (None, _) => done,
    }
}

/// The status that gRPC calls UNAVAILABLE is the one that is retried; a malformed push-back counts
/// as a negative one.
fn grpc(signals: &ResponseSignals) -> Meaning {
    const UNAVAILABLE: u32 = 14;

    let unavailable = match signals.grpc_status {
        Some(status) => status == UNAVAILABLE,
        None => matches!(signals.status, 429 | 502 | 503 | 504),
    };
    match (unavailable, signals.grpc_pushback) {
        (false, _) => Meaning::Final { success: signals.grpc_status == Some(0) },
        (true, Some(None)) => Meaning::Refused,
        (true, _) => Meaning::Retryable { throttled: false },
    }
}
