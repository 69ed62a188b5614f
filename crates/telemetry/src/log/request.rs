//! The line for one guarded request.

use std::{net::IpAddr, time::Duration};

use semel::core::{Problem, RecordId};
use semel_tower::{RequestOutcome, RequestOutcomeKind};

/// The log line of one guarded request: never a credential, a query or a body.
#[derive(Clone, Copy, Debug)]
pub struct RequestLine<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path, without the query.
    pub path: &'a str,
    /// The family of operations.
    pub scope: &'a str,
    /// The key; as the client sent it, or empty, if the request was refused before it had a record.
    pub key: &'a str,
    /// The caller's name, which for a credential is its hash.
    pub caller: &'a str,
    /// How it was answered: executed, joined, replayed, passed if it ran without its store, or the
    /// slug of a problem; client-gone if the client had left.
    pub outcome: &'a str,
    /// The fence, if it ran.
    pub fence: Option<u64>,
    /// Which attempt it was, if it ran.
    pub attempt: Option<u32>,
    /// What the client got; nothing if it was gone.
    pub status: Option<u16>,
    /// How long it took until the answer began.
    pub took: Duration,
    /// Who sent it, and how its other systems name it.
    pub origin: RequestOrigin<'a>,
}

/// Where a request came from.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestOrigin<'a> {
    /// The client's address: the peer's, or what a trusted proxy says.
    pub client: Option<IpAddr>,
    /// Its `X-Request-Id`.
    pub request_id: Option<&'a str>,
    /// The trace id of its `traceparent`.
    pub trace_id: Option<&'a str>,
}

/// The trace id of a `traceparent` (W3C Trace Context), if that is valid.
pub fn trace_id_of(traceparent: &str) -> Option<&str> {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let mut parts = traceparent.split('-');
    let (version, trace, parent) = (parts.next()?, parts.next()?, parts.next()?);
    let is_valid = (version.len(), trace.len(), parent.len()) == (2, 32, 16)
        && [version, trace, parent].into_iter().all(is_hex)
        && version != "ff"
        && trace.bytes().any(|byte| byte != b'0');
    is_valid.then_some(trace)
}

impl<'a> RequestLine<'a> {
    /// The line for an answer, from the outcome that the layer attached.
    pub fn of(
        method: &'a str,
        path: &'a str,
        scope: &'a str,
        served: &'a RequestOutcome,
        status: u16,
        took: Duration,
        origin: RequestOrigin<'a>,
    ) -> Self {
        let (key, caller) =
            served.id.as_ref().map_or(("", ""), |RecordId { key, caller, .. }| {
                (key.as_str(), if caller.is_anonymous() { "anonymous" } else { caller.as_str() })
            });
        let lease = served.lease.as_ref();
        Self {
            method,
            path,
            scope,
            key,
            caller,
            outcome: outcome_name(served.outcome),
            fence: lease.and_then(|lease| lease.fence()).map(|fence| fence.get()),
            attempt: lease.map(|lease| lease.attempt()),
            status: Some(status),
            took,
            origin,
        }
    }

    /// The line for a client that disconnected. The operation continues.
    pub const fn gone(
        method: &'a str,
        path: &'a str,
        scope: &'a str,
        key: &'a str,
        took: Duration,
        origin: RequestOrigin<'a>,
    ) -> Self {
        let (caller, outcome) = ("", "client-gone");
        let (fence, attempt, status) = (None, None, None);
        Self { method, path, scope, key, caller, outcome, fence, attempt, status, took, origin }
    }

    /// Writes it.
    pub fn log(&self) {
        let Self { method, path, scope, key, caller, outcome, .. } = *self;
        let Self { fence, attempt, status, took, origin, .. } = *self;
        let RequestOrigin { client, request_id, trace_id } = origin;
        let took_ms = took.as_secs_f64() * 1000.0;
        macro_rules! line {
            ($level:ident) => {
                tracing::event!(
                    target: "semel::request",
                    tracing::Level::$level,
                    method, path, scope, key, caller, outcome, fence, attempt, status, took_ms,
                    client = client.map(|client| client.to_string()),
                    request_id, trace_id,
                    "request"
                )
            };
        }
        if is_worrying(outcome) { line!(WARN) } else { line!(INFO) }
    }
}

/// The outcome of a request that ran unguarded because the store could not be reached.
const PASSED: &str = "passed";

/// The outcome of a request, as the metrics name it.
pub const fn outcome_name(outcome: RequestOutcomeKind) -> &'static str {
    match outcome {
        RequestOutcomeKind::Ran => "executed",
        RequestOutcomeKind::Joined => "joined",
        RequestOutcomeKind::Replayed => "replayed",
        RequestOutcomeKind::Unguarded => PASSED,
        RequestOutcomeKind::Refused(problem) => problem.slug(),
    }
}

/// Whether the outcome needs attention.
fn is_worrying(outcome: &str) -> bool {
    let problems = [Problem::OutcomeUnknown, Problem::UpstreamTimeout, Problem::StoreUnavailable];
    outcome == PASSED || problems.iter().any(|problem| problem.slug() == outcome)
}
