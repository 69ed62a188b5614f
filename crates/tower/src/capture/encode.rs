//! What is stored of an answer.

use http::{HeaderName, header, response::Parts};
use semel::core::{
    Answer, OnUnknown, Problem, Verdict,
    canonical::{self, Pointer},
};

use super::{Facts, Route};
use crate::{body::Whole, header::IDEMPOTENT_REPLAYED, kept, reply};

/// How much of an answer is stored. The client whose request ran gets all of it in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordContent {
    /// Status, kept headers and body: what a repeat gets byte for byte.
    #[default]
    Full,
    /// The status alone. Repeats get 410 `response-not-retained`.
    Status,
    /// The values that these JSON Pointers lead to are replaced by `"[redacted]"` before the
    /// answer is stored. Replays that lack one are marked `Idempotent-Replayed: redacted`. Of a
    /// body that is not JSON only the status is stored.
    Redacted(Vec<Pointer>),
}

/// The most that the kept headers and trailers of an answer may have together; an answer with more
/// is not retained.
pub(super) const FIELD_BYTES_MAX: usize = 64 << 10;

/// Headers that are true of the body before it was redacted only.
const OF_WHOLE_BODY: [&str; 3] = ["content-length", "content-md5", "content-digest"];

/// What `Idempotent-Replayed` says in a stored answer that was redacted. A service cannot put it
/// there, since that header of an answer is never kept.
const REDACTED: &[u8] = b"redacted";

/// The answer for the record; or, if it is not recorded, for those who joined, who then get what
/// its owner gets.
pub(super) fn encode(
    parts: &Parts,
    whole: &Whole,
    route: Route<'_>,
    facts: Facts,
    verdict: Verdict,
) -> Answer {
    if verdict != Verdict::Completed {
        let shared = |name: &HeaderName| kept::is_shared(name);
        let answer = fields_and_body(parts, whole, facts, shared, None);
        return answer.unwrap_or_else(|| not_retained(facts.status, verdict, route));
    }
    // The head of an answer that is trailers only is its trailers, and the head of a problem says
    // whether to retry.
    let whole_head = facts.grpc_status.is_some() || facts.needs_body();
    let keeps = |name: &HeaderName| match whole_head {
        true => kept::may_be_kept(name),
        false => route.kept.keeps(name, facts.grpc),
    };
    let redacted = match route.content {
        RecordContent::Full => Some(None),
        RecordContent::Status => None,
        RecordContent::Redacted(pointers) => redact(whole.data(), pointers),
    };
    let answer =
        redacted.and_then(|body| fields_and_body(parts, whole, facts, keeps, body.as_deref()));
    answer.unwrap_or_else(|| Answer::not_retained(facts.status))
}

/// The body without what must not be stored. `Some(None)` if nothing in it has to be replaced, and
/// `None` if the content cannot be read.
fn redact(body: &[u8], pointers: &[Pointer]) -> Option<Option<Vec<u8>>> {
    if body.is_empty() {
        return Some(None);
    }
    canonical::redact(body, pointers).ok()
}

/// Encodes the fields that `keeps` takes, and the body or what replaces it. `None` if the fields
/// are too large.
fn fields_and_body(
    parts: &Parts,
    whole: &Whole,
    facts: Facts,
    keeps: impl Fn(&HeaderName) -> bool,
    redacted: Option<&[u8]>,
) -> Option<Answer> {
    let has_trailers = whole.trailers().is_some();
    let keeps = |name: &HeaderName| {
        // With a length, HTTP/1.1 has no trailers.
        let contradicts = (has_trailers && *name == header::CONTENT_LENGTH)
            || (redacted.is_some() && OF_WHOLE_BODY.contains(&name.as_str()));
        keeps(name) && !contradicts
    };
    let mut headers = Vec::with_capacity(parts.headers.len().saturating_add(1));
    let mut bytes = 0_usize;
    for (name, value) in parts.headers.iter().filter(|(name, _)| keeps(name)) {
        bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
        headers.push((name.as_str().as_bytes(), value.as_bytes()));
    }
    let mut trailers = Vec::new();
    for (name, value) in whole.trailers().into_iter().flatten() {
        if kept::may_be_kept(name) {
            bytes = bytes.saturating_add(name.as_str().len()).saturating_add(value.len());
            trailers.push((name.as_str().as_bytes(), value.as_bytes()));
        }
    }
    let replayed = IDEMPOTENT_REPLAYED;
    if redacted.is_some() {
        headers.push((replayed.as_str().as_bytes(), REDACTED));
    }
    let body = redacted.unwrap_or(whole.data());
    (bytes <= FIELD_BYTES_MAX).then(|| Answer::encode(facts.status, &headers, &trailers, body))
}

/// What stands for an answer that is not retained. Only a completed one is recorded; otherwise it
/// is what those who joined get.
pub(super) fn not_retained(status: u16, verdict: Verdict, route: Route<'_>) -> Answer {
    match (verdict, route.policy.on_unknown) {
        (Verdict::Completed, _) => Answer::not_retained(status),
        (Verdict::Retry | Verdict::Forget, _) | (Verdict::Unknown, OnUnknown::Rerun) => {
            reply::instead(Problem::InProgress)
        }
        (Verdict::Unknown, OnUnknown::Hold | OnUnknown::Fail) => {
            reply::instead(Problem::OutcomeUnknown)
        }
    }
}
