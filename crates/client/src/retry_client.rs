//! The retrying client: sends a request until its answer is final.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use semel_core::retry::{
    AttemptTiming, GiveUpReason, RetryBudget, RetryDecision, RetryPolicy, RetryState,
};

use crate::attempt::{self, AttemptEnd};
use crate::clock;

const KEY_HEADER: HeaderName = HeaderName::from_static("idempotency-key");
const DEADLINE_HEADER: HeaderName = HeaderName::from_static("x-request-timeout-ms");
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An HTTP client that retries. Its clones share connections and the retry budget.
///
/// A POST or PATCH without an `Idempotency-Key` gets a random one, and every attempt of a call
/// sends the same bytes. What is left until the deadline is sent as `x-request-timeout-ms`.
#[derive(Clone, Debug)]
pub struct RetryClient {
    http: reqwest::Client,
    policy: RetryPolicy,
    attempt_timeout: Duration,
    draws_keys: bool,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    budget: Mutex<RetryBudget>,
    /// The origin of the budget's clock.
    started: Instant,
}

/// No attempt of a call was answered. Whether the operation happened is unknown: another call with
/// the same key learns it.
#[derive(Debug, thiserror::Error)]
#[error("the call was given up ({}): {source}", reason.as_str())]
pub struct CallError {
    /// The key of the call; `None` if it had none.
    pub key: Option<HeaderValue>,
    /// Why there was no further attempt.
    pub reason: GiveUpReason,
    /// How the last attempt ended.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl RetryClient {
    /// With the policy [`RetryPolicy::SEMEL`].
    ///
    /// # Errors
    ///
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).build()?;
        Ok(Self::with_http(http))
    }

    /// On connections of your own, with their proxies, certificates and redirects.
    #[must_use]
    pub fn with_http(http: reqwest::Client) -> Self {
        let policy = RetryPolicy::SEMEL;
        let budget = Mutex::new(RetryBudget::new(policy.budget));
        let shared = Arc::new(Shared { budget, started: clock::now() });
        Self { http, policy, attempt_timeout: ATTEMPT_TIMEOUT, draws_keys: true, shared }
    }

    /// With another policy and a new budget.
    #[must_use]
    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        let budget = Mutex::new(RetryBudget::new(policy.budget));
        self.shared = Arc::new(Shared { budget, started: clock::now() });
        self.policy = policy;
        self
    }

    pub(crate) const fn retry_policy(&self) -> RetryPolicy {
        self.policy
    }

    /// With another deadline for each call; `None` for no limit.
    #[must_use]
    pub fn deadline(mut self, deadline: Option<Duration>) -> Self {
        self.policy.deadline = deadline;
        self
    }

    /// With another timeout of one attempt; by default 30 seconds.
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// Without drawing keys, for requests that are safe to repeat by themselves.
    #[must_use]
    pub fn without_keys(mut self) -> Self {
        self.draws_keys = false;
        self
    }

    /// Sends a request until its answer is final, or no further attempt is allowed. An answer is
    /// returned whatever its status is. Where the deadline cuts the last attempt, an earlier answer
    /// that asked to wait (409, 423) is returned.
    ///
    /// # Errors
    ///
    /// If the last attempt had no answer.
    pub async fn send(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, CallError> {
        let began = clock::now();
        let is_keyed = matches!(*request.method(), Method::POST | Method::PATCH);
        if is_keyed && self.draws_keys && !request.headers().contains_key(KEY_HEADER) {
            request.headers_mut().insert(KEY_HEADER, attempt::random_key());
        }
        let mut call = self.shared.with_budget(RetryState::begin);
        let mut running = None;
        loop {
            let timeout = self.prepare(&mut request, began);
            let result = attempt::send(&self.http, copy_of(&request), timeout).await;
            let decision = match result.outcome() {
                None => RetryDecision::Done,
                Some(outcome) => self.shared.with_budget(|budget, now| {
                    let at =
                        AttemptTiming { now, elapsed: began.elapsed(), random: attempt::random() };
                    self.policy.decide(&mut call, budget, &outcome, at)
                }),
            };
            let reason = match decision {
                RetryDecision::Wait(delay) => {
                    if let AttemptEnd::Answered(response) = result
                        && matches!(response.status().as_u16(), 409 | 423)
                    {
                        running = Some(response);
                    }
                    tokio::time::sleep(delay).await;
                    continue;
                }
                RetryDecision::GiveUp(reason) => reason,
                RetryDecision::Done => GiveUpReason::Refused,
            };
            let running = running.filter(|_| reason == GiveUpReason::Deadline);
            let source = match (result, running) {
                (AttemptEnd::Answered(response), _) | (AttemptEnd::Failed(_), Some(response)) => {
                    return Ok(response);
                }
                (AttemptEnd::Failed(error), None) => error.into(),
                (AttemptEnd::TooLarge, _) => "the answer is too large".into(),
            };
            let key = request.headers().get(KEY_HEADER).cloned();
            return Err(CallError { key, reason, source });
        }
    }

    /// Before an attempt: its timeout, and the deadline in its header.
    fn prepare(&self, request: &mut Request<Bytes>, began: Instant) -> Duration {
        let Some(deadline) = self.policy.deadline else { return self.attempt_timeout };
        let rest = deadline.saturating_sub(began.elapsed()).max(Duration::from_millis(1));
        request.headers_mut().insert(DEADLINE_HEADER, milliseconds(rest));
        self.attempt_timeout.min(rest)
    }
}

impl Shared {
    fn with_budget<T>(&self, act: impl FnOnce(&mut RetryBudget, Duration) -> T) -> T {
        let mut budget = self.budget.lock().unwrap_or_else(PoisonError::into_inner);
        act(&mut budget, self.started.elapsed())
    }
}

fn milliseconds(time: Duration) -> HeaderValue {
    HeaderValue::from(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The same request; its body is shared.
fn copy_of(request: &Request<Bytes>) -> Request<Bytes> {
    let mut copy = Request::new(request.body().clone());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy
}
