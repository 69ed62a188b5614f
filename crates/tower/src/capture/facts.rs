//! What an answer says about itself: in its head, in its trailers, and as a problem of another
//! Semel in its body.

use http::{HeaderMap, HeaderValue, StatusCode, header, response::Parts};
use semel::core::{AnswerFacts, Grpc, Policy, Reason, Verdict};

use crate::{
    body::Whole,
    grpc,
    header::{
        IDEMPOTENCY_GUARDED, IDEMPOTENCY_OUTCOME, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED,
        SHOULD_RETRY,
    },
    upstream_problem::StatedProblem,
};

/// What an answer says about itself in its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) status: u16,
    /// What the service says its answer makes of the operation.
    said: Option<Verdict>,
    /// What the answer is if it is the problem of another Semel.
    problem: Option<StatedProblem>,
    /// Whether it carries `Retry-After` or `x-should-retry: true`.
    asks_for_retry: bool,
    pub(super) grpc: bool,
    /// The gRPC status of an answer that is trailers only.
    pub(super) grpc_status: Option<u16>,
    is_final: bool,
}

/// What an answer makes of its record, and why.
#[derive(Clone, Debug)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
    /// What the service said in `Idempotency-Outcome` that its own success contradicts.
    pub(crate) contradicted: Option<Verdict>,
}

impl Facts {
    /// Reads the head, and removes from it what is meant for us.
    pub(crate) fn take(parts: &mut Parts, grpc_request: bool) -> Self {
        strip_marks(&mut parts.headers);
        // To a gRPC call, 200 is an answer only with a status of its own: without one it may be a
        // page of some proxy.
        let grpc =
            grpc::is_grpc(&parts.headers) || (grpc_request && parts.status == StatusCode::OK);
        let grpc_status = if grpc { grpc::status(&parts.headers) } else { None };
        let problem = StatedProblem::of(parts);
        if problem.is_none() {
            parts.headers.remove(IDEMPOTENCY_PROBLEM);
        }
        let extension = parts.extensions.remove::<Verdict>();
        let headers = &mut parts.headers;
        let said = take_outcome(headers).or(extension);
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

    /// Whether the head states a problem of another Semel, so that the body decides what it is.
    pub(crate) const fn needs_body(&self) -> bool {
        self.problem.is_some()
    }

    /// Reads the body for the problem that the head states, and forgets it if they disagree.
    pub(crate) fn read_body(&mut self, whole: &Whole) {
        let verdict = self.problem.and_then(|problem| problem.verdict(whole));
        if verdict.is_none() {
            self.problem = None;
        }
        self.said = self.said.or(verdict);
    }

    /// Forgets the problem that the head states, because the body is not read.
    pub(super) const fn forget_problem(&mut self) {
        self.problem = None;
    }

    /// Removes the header of a problem that the answer is not.
    pub(super) fn strip_problem(&self, parts: &mut Parts) {
        if self.problem.is_none() {
            parts.headers.remove(IDEMPOTENCY_PROBLEM);
        }
    }

    /// Judges an answer that came to its end. Removes from the trailers what is meant for us.
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
            (false, _) => Grpc::No,
            (true, None) => Grpc::NoTrailers,
            (true, Some(code)) => Grpc::Status(code),
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

    /// Whether the head decides even if the end of the answer cannot be read: its length was known
    /// when it was sent, and nothing that follows the body says more.
    pub(crate) const fn is_final(&self) -> bool {
        self.is_final
    }

    /// Judges an answer whose end could not be read. `None` if its head does not decide.
    pub(crate) fn judge_head(&self, policy: &Policy) -> Option<Judgement> {
        self.is_final.then(|| self.judge(policy, None))
    }
}

/// Removes what only this layer says of its own answers.
fn strip_marks(fields: &mut HeaderMap) {
    for mark in [IDEMPOTENT_REPLAYED, IDEMPOTENCY_GUARDED] {
        fields.remove(mark);
    }
}

/// A value that cannot be understood, or two that differ, leave the outcome unknown.
fn take_outcome(fields: &mut HeaderMap) -> Option<Verdict> {
    let mut lines = fields.get_all(IDEMPOTENCY_OUTCOME).iter();
    let first = Verdict::from_header(lines.next()?.as_bytes()).unwrap_or(Verdict::Unknown);
    let agree = lines.all(|line| Verdict::from_header(line.as_bytes()) == Some(first));
    fields.remove(IDEMPOTENCY_OUTCOME);
    Some(if agree { first } else { Verdict::Unknown })
}
