//! How an answer is encoded for its record.

use bytes::Bytes;
use http::{HeaderName, header, response::Parts};
use semel::core::{
    Answer, OnUnknown, Problem, Verdict,
    canonical::{self, Pointer},
};

use super::CaptureContext;
use crate::{
    buffered_body::BufferedBody,
    config::RecordContent,
    header::{IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED},
    replay_headers,
    response_facts::ResponseFacts,
};

/// The maximum size of the kept headers and trailers of an answer; an answer with more is not
/// retained.
pub(super) const FIELD_BYTES_MAX: usize = 64 << 10;

/// Headers that describe the whole body and are wrong after redaction.
const OF_WHOLE_BODY: [&str; 3] = ["content-length", "content-md5", "content-digest"];

/// The value of `Idempotent-Replayed` in a redacted answer. A service cannot set it, since this
/// header of an answer is never kept.
const REDACTED: &[u8] = b"redacted";

/// The answer for the record; or, if it is not recorded, for joined requests, which then get what
/// the owner gets.
pub(super) fn encode(
    parts: &Parts,
    buffered: &BufferedBody,
    route: &CaptureContext,
    facts: ResponseFacts,
    verdict: Verdict,
) -> Answer {
    if verdict != Verdict::Completed {
        let shared = |name: &HeaderName| replay_headers::is_shared(name);
        let answer = fields_and_body(parts, buffered, facts, shared, None);
        return answer.unwrap_or_else(|| not_retained(facts.status, verdict, route));
    }
    // The head of a trailers-only answer is its trailers, and the head of a problem contains the
    // retry advice.
    let whole_head = facts.grpc_status.is_some() || facts.needs_body();
    let includes = |name: &HeaderName| match whole_head {
        true => replay_headers::may_be_kept(name),
        false => route.config.replay_headers.includes(name, facts.grpc),
    };
    let redacted = match &route.config.content {
        RecordContent::Full => Some(None),
        RecordContent::Status => None,
        RecordContent::Redacted(pointers) => redact(buffered.data(), pointers),
    };
    let answer = redacted
        .and_then(|body| fields_and_body(parts, buffered, facts, includes, body.as_deref()));
    answer.unwrap_or_else(|| Answer::not_retained(facts.status))
}

/// The redacted body. `Some(None)` if nothing has to be replaced, and `None` if the content cannot
/// be read.
fn redact(body: &[u8], pointers: &[Pointer]) -> Option<Option<Vec<u8>>> {
    if body.is_empty() {
        return Some(None);
    }
    canonical::redact(body, pointers).ok()
}

/// Encodes the fields that `includes` takes, and the body or what replaces it. `None` if the fields
/// are too large.
fn fields_and_body(
    parts: &Parts,
    buffered: &BufferedBody,
    facts: ResponseFacts,
    includes: impl Fn(&HeaderName) -> bool,
    redacted: Option<&[u8]>,
) -> Option<Answer> {
    let has_trailers = buffered.trailers().is_some();
    let includes = |name: &HeaderName| {
        // HTTP/1.1 has no trailers after a `Content-Length`.
        let contradicts = (has_trailers && *name == header::CONTENT_LENGTH)
            || (redacted.is_some() && OF_WHOLE_BODY.contains(&name.as_str()));
        includes(name) && !contradicts
    };
    let mut headers = Vec::with_capacity(parts.headers.len().saturating_add(1));
    let mut bytes = 0_usize;
    for (name, value) in parts.headers.iter().filter(|(name, _)| includes(name)) {
        bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
        headers.push((name.as_str().as_bytes(), value.as_bytes()));
    }
    let mut trailers = Vec::new();
    for (name, value) in buffered.trailers().into_iter().flatten() {
        if replay_headers::may_be_kept(name) {
            bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
            trailers.push((name.as_str().as_bytes(), value.as_bytes()));
        }
    }
    let replayed = IDEMPOTENT_REPLAYED;
    if redacted.is_some() {
        headers.push((replayed.as_str().as_bytes(), REDACTED));
    }
    let body = redacted.unwrap_or(buffered.data());
    (bytes <= FIELD_BYTES_MAX).then(|| Answer::encode(facts.status, &headers, &trailers, body))
}

/// The placeholder of an answer that is not retained. Only a completed one is recorded; otherwise
/// joined requests get it.
pub(super) fn not_retained(status: u16, verdict: Verdict, route: &CaptureContext) -> Answer {
    match (verdict, route.policy.on_unknown) {
        (Verdict::Completed, _) => Answer::not_retained(status),
        (Verdict::Retry | Verdict::Forget, _) | (Verdict::Unknown, OnUnknown::Rerun) => {
            problem_answer(Problem::InProgress)
        }
        (Verdict::Unknown, OnUnknown::Hold | OnUnknown::Fail) => {
            problem_answer(Problem::OutcomeUnknown)
        }
    }
}

/// The answer for joined requests if the owner's answer was streamed through and is not recorded:
/// it must not claim that the operation is completed.
pub(crate) fn problem_answer(problem: Problem) -> Answer {
    let name = IDEMPOTENCY_PROBLEM;
    let header = (name.as_str().as_bytes(), problem.slug().as_bytes());
    Answer::encode(problem.status(), &[header], &[], &Bytes::new())
}
