//! What an answer says about itself: in its head, in its trailers, and as a problem of another
//! Semel in its body.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response::Parts};
use semel::core::{
    AnswerFacts, Grpc, Policy, Problem, Reason, Verdict,
    canonical::{self, Pointer, Value},
};

use crate::{
    grpc,
    header::{IDEMPOTENCY_OUTCOME, IDEMPOTENCY_PROBLEM},
};

const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What an answer says about itself in its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) status: u16,
    /// What the service says its answer makes of the operation.
    said: Option<Verdict>,
    /// The problem of another Semel that the answer may be, if its body agrees.
    problem: Option<Problem>,
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
        // To a gRPC call, 200 is an answer only with a status of its own: without one it may be a
        // page of some proxy.
        let grpc =
            grpc::is_grpc(&parts.headers) || (grpc_request && parts.status == StatusCode::OK);
        let grpc_status = if grpc { grpc::status(&parts.headers) } else { None };
        let extension = parts.extensions.remove::<Verdict>();
        let headers = &mut parts.headers;
        let said = take_outcome(headers).or(extension);
        let should_retry = headers.get(SHOULD_RETRY).map(HeaderValue::as_bytes);
        Self {
            status: parts.status.as_u16(),
            said,
            problem: problem(headers, parts.status, grpc_status),
            asks_for_retry: headers.contains_key(header::RETRY_AFTER)
                || should_retry.is_some_and(|value| value.trim_ascii() == b"true"),
            grpc,
            grpc_status,
            is_final: !grpc
                && headers.contains_key(header::CONTENT_LENGTH)
                && !headers.contains_key(header::TRAILER),
        }
    }

    /// Judges an answer that came to its end; `body` is all of it, where it was read as a whole.
    /// Removes from the trailers what is meant for us.
    pub(crate) fn judge(
        &self,
        policy: &Policy,
        body: Option<&[u8]>,
        trailers: Option<&mut HeaderMap>,
    ) -> Judgement {
        let (mut said, mut status) = (self.said, self.grpc_status);
        if let Some(trailers) = trailers {
            status = grpc::status(trailers).or(status);
            said = match (said, take_outcome(trailers)) {
                (Some(head), Some(tail)) if head != tail => Some(Verdict::Unknown),
                (head, tail) => head.or(tail),
            };
        }
        let problem = self.problem.filter(|problem| self.grpc || agrees(*problem, body));
        let said = said.or_else(|| problem.map(Problem::verdict));
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
        self.is_final.then(|| self.judge(policy, None, None))
    }
}

/// The problem that an answer of another Semel may be. Services copy headers of what they called
/// into their own answers, so the header alone proves nothing: the status has to be the problem's
/// own, and so has the media type, or for gRPC the status of an answer that is trailers only.
fn problem(headers: &HeaderMap, status: StatusCode, grpc_status: Option<u16>) -> Option<Problem> {
    let slug = headers.get(IDEMPOTENCY_PROBLEM)?.to_str().ok()?;
    if let Some(code) = grpc_status {
        let mut named = Problem::ALL.iter().filter(|problem| problem.slug() == slug);
        return named.find(|problem| grpc::code(**problem) == code).copied();
    }
    let problem = Problem::from_slug(slug, status.as_u16())?;
    let content_type = headers.get(header::CONTENT_TYPE)?.as_bytes();
    let essence = content_type.split(|byte| *byte == b';').next()?.trim_ascii();
    let agree = problem.status() == status.as_u16()
        && essence.eq_ignore_ascii_case(b"application/problem+json");
    agree.then_some(problem)
}

/// Whether a body is the document of a problem.
fn agrees(problem: Problem, body: Option<&[u8]>) -> bool {
    let Ok(pointer) = Pointer::parse("/type") else { return false };
    let found = body.and_then(|body| canonical::find(body, &pointer).ok()).flatten();
    found == Some(Value::Text(problem.type_uri()))
}

/// A value that cannot be understood, or two that differ, leave the outcome unknown.
fn take_outcome(fields: &mut HeaderMap) -> Option<Verdict> {
    let mut lines = fields.get_all(IDEMPOTENCY_OUTCOME).iter();
    let first = Verdict::from_header(lines.next()?.as_bytes()).unwrap_or(Verdict::Unknown);
    let agree = lines.all(|line| Verdict::from_header(line.as_bytes()) == Some(first));
    fields.remove(IDEMPOTENCY_OUTCOME);
    Some(if agree { first } else { Verdict::Unknown })
}
