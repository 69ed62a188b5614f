//! What an answer declares about itself: in its head, in its trailers, and as a problem of another
//! Semel in its body.

use http::{HeaderMap, HeaderValue, header, response::Parts};
use semel::core::{AnswerFacts, GrpcStatus, Policy, Reason, Verdict};

use crate::{
    buffered_body::BufferedBody,
    grpc,
    header::{
        IDEMPOTENCY_ATTEMPT, IDEMPOTENCY_EXPIRES, IDEMPOTENCY_FENCE, IDEMPOTENCY_GUARDED,
        IDEMPOTENCY_OUTCOME, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED, SHOULD_RETRY,
    },
    upstream_problem::DeclaredProblem,
};

/// What an answer declares in its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseFacts {
    pub(crate) status: u16,
    /// The verdict that the service declares.
    said: Option<Verdict>,
    /// The problem of another Semel that the head declares.
    problem: Option<DeclaredProblem>,
    /// Whether it carries `Retry-After` or `x-should-retry: true`.
    asks_for_retry: bool,
    pub(crate) grpc: bool,
    /// The gRPC status of a trailers-only answer.
    pub(crate) grpc_status: Option<u16>,
    is_final: bool,
}

/// The verdict on an answer, and why.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
    /// The declared `Idempotency-Outcome` that contradicts a successful status.
    pub(crate) contradicted: Option<Verdict>,
}

impl ResponseFacts {
    /// Reads the head, and removes headers that are addressed to this layer.
    pub(crate) fn take(parts: &mut Parts, grpc_request: bool) -> Self {
        let has_ours = has_ours(&parts.headers);
        if has_ours {
            strip_marks(&mut parts.headers);
        }
        // Both must be gRPC: a content type on one side only would turn a plain 200 into an answer
        // without trailers, which leaves the record held.
        let grpc = grpc_request && grpc::has_grpc_type(&parts.headers);
        let grpc_status = if grpc { grpc::status(&parts.headers) } else { None };
        let problem = if has_ours { DeclaredProblem::of(parts) } else { None };
        if has_ours && problem.is_none() {
            parts.headers.remove(IDEMPOTENCY_PROBLEM);
        }
        let extension = parts.extensions.remove::<Verdict>();
        let headers = &mut parts.headers;
        let said = if has_ours { take_outcome(headers) } else { None }.or(extension);
        let should_retry = headers.get(SHOULD_RETRY).map(HeaderValue::as_bytes);
        Self {
            status: parts.status.as_u16(),
            said,
            problem,
            asks_for_retry: headers.contains_key(header::RETRY_AFTER)
                || should_retry.is_some_and(|value| value.trim_ascii() == b"true"),
            grpc,
            grpc_status,
            is_final: !grpc
                && headers.contains_key(header::CONTENT_LENGTH)
                && !headers.contains_key(header::TRAILER),
        }
    }

    /// Whether the head declares a problem of another Semel, so that the body must be checked.
    pub(crate) const fn needs_body(&self) -> bool {
        self.problem.is_some()
    }

    /// Compares the body with the declared problem, and drops the problem if they disagree.
    pub(crate) fn read_body(&mut self, buffered: &BufferedBody) {
        let verdict = self.problem.and_then(|problem| problem.verdict(buffered));
        if verdict.is_none() {
            self.problem = None;
        }
        self.said = self.said.or(verdict);
    }

    /// Drops the declared problem, because the body is not read.
    pub(crate) const fn forget_problem(&mut self) {
        self.problem = None;
    }

    /// Removes the header of a problem that was not confirmed.
    pub(crate) fn strip_problem(&self, parts: &mut Parts) {
        if self.problem.is_none() {
            parts.headers.remove(IDEMPOTENCY_PROBLEM);
        }
    }

    /// Judges a complete answer. Removes trailers that are addressed to this layer.
    pub(crate) fn judge(&self, policy: &Policy, trailers: Option<&mut HeaderMap>) -> Judgement {
        let (mut said, mut status) = (self.said, self.grpc_status);
        if let Some(trailers) = trailers {
            strip_marks(trailers);
            status = grpc::status(trailers).or(status);
            said = match (said, take_outcome(trailers)) {
                (Some(head), Some(tail)) if head != tail => Some(Verdict::Unknown),
                (head, tail) => head.or(tail),
            };
        }
        let grpc = match (self.grpc, status) {
            (false, _) => GrpcStatus::No,
            (true, None) => GrpcStatus::NoTrailers,
            (true, Some(code)) => GrpcStatus::Status(code),
        };
        let asks_for_retry = self.asks_for_retry;
        let facts = AnswerFacts { status: self.status, grpc, said, asks_for_retry };
        let takes_back = |said: &Verdict| matches!(said, Verdict::Retry | Verdict::Forget);
        Judgement {
            verdict: policy.verdict(&facts),
            reason: facts.reason(),
            contradicted: said.filter(takes_back).filter(|_| facts.is_success()),
        }
    }

    /// Whether the head decides even if the end of the answer cannot be read: its length was
    /// declared, and no trailers follow.
    pub(crate) const fn is_final(&self) -> bool {
        self.is_final
    }

    /// Judges an answer whose end could not be read. `None` if its head does not decide.
    pub(crate) fn judge_head(&self, policy: &Policy) -> Option<Judgement> {
        self.is_final.then(|| self.judge(policy, None))
    }
}

/// Whether an answer has any header that is addressed to this layer. Most have none, and one pass
/// over the names is cheaper than a lookup of each.
fn has_ours(fields: &HeaderMap) -> bool {
    fields.keys().any(|name| name.as_str().starts_with("idempoten"))
}

/// Removes headers that only this layer sets on its own answers, and those that a gateway sends to
/// its upstream and that a service may echo.
fn strip_marks(fields: &mut HeaderMap) {
    let marks = [
        IDEMPOTENT_REPLAYED,
        IDEMPOTENCY_EXPIRES,
        IDEMPOTENCY_GUARDED,
        IDEMPOTENCY_FENCE,
        IDEMPOTENCY_ATTEMPT,
    ];
    for mark in marks {
        fields.remove(mark);
    }
}

/// A value that cannot be parsed, or two that differ, leave the outcome unknown.
fn take_outcome(fields: &mut HeaderMap) -> Option<Verdict> {
    let mut lines = fields.get_all(IDEMPOTENCY_OUTCOME).iter();
    let first = Verdict::from_header(lines.next()?.as_bytes()).unwrap_or(Verdict::Unknown);
    let agree = lines.all(|line| Verdict::from_header(line.as_bytes()) == Some(first));
    fields.remove(IDEMPOTENCY_OUTCOME);
    Some(if agree { first } else { Verdict::Unknown })
}
