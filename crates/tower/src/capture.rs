//! From the answer of the inner service to what is recorded, and to what its client gets.

use std::{
    error, fmt,
    pin::{Pin, pin},
    sync::Weak,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::Body;
use semel::core::{Answer, AnswerFacts, Ended, Grpc, Policy, Problem, Verdict};

use crate::{
    BoxError,
    body::Whole,
    gather::{Filled, Gather},
    grpc,
    hand::{self, Hand, Handed},
    header::{IDEMPOTENCY_GUARDED, IDEMPOTENCY_OUTCOME, IDEMPOTENCY_PROBLEM, IDEMPOTENT_REPLAYED},
    kept::{self, Kept},
    pump, reply,
    upstream_problem::StatedProblem,
};

/// Says that an answer is a stream: a response extension for handlers.
///
/// Such an answer is passed on as it comes, whatever its size. What it says cannot be replayed, so
/// a repeat gets 410 `response-not-retained`. `text/event-stream` and whatever is larger than
/// `response_bytes_max` are treated so without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming;

/// Says that a request did not reach the service: an error for inner services that forward
/// requests.
///
/// When the inner service fails with an error that is this one, or that has it among its
/// [sources](error::Error::source), then nothing was done: the key is free again, and the client is
/// told 502 `upstream-unreachable`. Any other error leaves open what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeverReached;

impl fmt::Display for NeverReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request did not reach the service")
    }
}

impl error::Error for NeverReached {}

/// How an execution ended whose service failed with this error.
pub(crate) fn failed(error: &(dyn error::Error + 'static)) -> Ended {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<NeverReached>() {
            return Ended::NeverReached;
        }
        next = error.source();
    }
    Ended::Broken
}

/// What of its route an answer is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) kept: &'a Kept,
    pub(crate) policy: &'a Policy,
    /// Whether the request is gRPC.
    pub(crate) grpc: bool,
    /// Whether there is a record to write. Without one nothing is kept for a replay, and those who
    /// joined get what the owner gets.
    pub(crate) guarded: bool,
}

/// The most that the kept headers and trailers of an answer may have together; an answer with more
/// is not retained.
const FIELD_BYTES_MAX: usize = 64 << 10;

/// Takes an answer to its end: hands it over, and says what is to be recorded.
pub(crate) fn capture<B>(
    response: Response<B>,
    route: Route<'_>,
    client: &Weak<Hand>,
) -> impl Future<Output = Ended> + Send
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let mut facts = Facts::take(&mut parts, route.grpc);
    if !route.guarded {
        parts.headers.insert(IDEMPOTENCY_GUARDED, HeaderValue::from_static("false"));
    }
    // Not an `async fn`, which would keep its arguments twice.
    async move {
        let mut body = pin!(body);
        let mut gather = Gather::default();
        let max = route.policy.response_bytes_max;
        if !is_stream(&parts, &*body, max) {
            match gather.fill(body.as_mut(), max).await {
                Ok(Filled::Whole) => {
                    let mut whole = gather.finish();
                    drop_wrong_length(&mut parts, &whole);
                    if facts.needs_body() {
                        facts.read_body(&whole);
                        facts.strip_problem(&mut parts);
                    }
                    let verdict = facts.verdict(route.policy, whole.trailers_mut());
                    let answer = encode(&parts, &whole, route, facts, verdict);
                    hand::leave(client, Handed::Whole(parts, whole));
                    return Ended::Answered { verdict, answer };
                }
                Ok(Filled::Over) => {}
                Err(_) => return Ended::Broken,
            }
        }
        facts.problem = None;
        facts.strip_problem(&mut parts);
        // Most answers do not come this far, so that it is not part of their future.
        let begun = gather.finish().data().clone();
        Box::pin(pass_on(parts, facts, body, begun, route.policy, client)).await
    }
}

/// A length that the body does not have would make the rest of the body look like the next answer,
/// now and at every replay. A service that writes its own framing may say one.
fn drop_wrong_length(parts: &mut Parts, whole: &Whole) {
    let length = whole.data().len().to_string();
    let wrong = |line: &HeaderValue| line.as_bytes() != length.as_bytes();
    let lines = parts.headers.get_all(header::CONTENT_LENGTH);
    if parts.status != StatusCode::NOT_MODIFIED && lines.iter().any(wrong) {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
}

/// Hands an answer over as it comes.
async fn pass_on<B>(
    parts: Parts,
    facts: Facts,
    body: Pin<&mut B>,
    begun: Bytes,
    policy: &Policy,
    client: &Weak<Hand>,
) -> Ended
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let begun_bytes = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let bytes = body.size_hint().exact().map(|rest| rest.saturating_add(begun_bytes));
    let (mut tap, pieces) = pump::pipe(bytes);
    hand::leave(client, Handed::Live(parts, pieces));
    match pump::pump(body, begun, &mut tap).await {
        Ok(mut last) => {
            let verdict = facts.verdict(policy, last.trailers_mut());
            tap.finish(last);
            Ended::Answered { verdict, answer: not_retained(facts.status, verdict) }
        }
        Err(pump::Broken) => Ended::Broken,
    }
}

/// What stands for an answer that is not retained. Only a completed one is recorded; otherwise it
/// is
/// what those who joined get.
fn not_retained(status: u16, verdict: Verdict) -> Answer {
    match verdict {
        Verdict::Completed => Answer::not_retained(status),
        Verdict::Retry => reply::instead(Problem::InProgress),
        Verdict::Unknown => reply::instead(Problem::OutcomeUnknown),
    }
}

/// Whether an answer is passed on as it comes. One that is over already has nothing to pass on.
pub(crate) fn is_stream<B: Body>(parts: &Parts, body: &B, max: usize) -> bool {
    let events = || {
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let essence = content_type.and_then(|value| value.as_bytes().get(..17));
        essence.is_some_and(|essence| essence.eq_ignore_ascii_case(b"text/event-stream"))
    };
    let large = || body.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX);
    !body.is_end_stream() && (large() || events() || parts.extensions.get::<Streaming>().is_some())
}

/// What an answer says about itself in its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) status: u16,
    said: Option<Verdict>,
    /// What the answer is if it is the problem of another Semel.
    problem: Option<StatedProblem>,
    grpc: bool,
    /// The gRPC status of an answer that is trailers only.
    grpc_status: Option<u16>,
}

impl Facts {
    /// Reads the head, and removes from it what is meant for us.
    pub(crate) fn take(parts: &mut Parts, grpc_request: bool) -> Self {
        strip_marks(&mut parts.headers);
        // To a gRPC call, 200 is an answer only with a status of its own: without one it may be a
        // page of some proxy.
        let grpc =
            grpc::is_grpc(&parts.headers) || (grpc_request && parts.status == StatusCode::OK);
        Self {
            status: parts.status.as_u16(),
            said: take_said(parts),
            problem: take_problem(parts),
            grpc,
            grpc_status: if grpc { grpc::status(&parts.headers) } else { None },
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

    /// Removes the header of a problem that the answer is not.
    fn strip_problem(&self, parts: &mut Parts) {
        if self.problem.is_none() {
            parts.headers.remove(IDEMPOTENCY_PROBLEM);
        }
    }

    /// Reads the trailers too, and removes from them what is meant for us.
    pub(crate) fn verdict(&self, policy: &Policy, trailers: Option<&mut HeaderMap>) -> Verdict {
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
        policy.verdict(&AnswerFacts { status: self.status, grpc, said })
    }
}

/// What the service says its answer makes of the operation: in a header, or else in an extension.
fn take_said(parts: &mut Parts) -> Option<Verdict> {
    let extension = parts.extensions.remove::<Verdict>();
    take_outcome(&mut parts.headers).or(extension)
}

/// The problem of another Semel that the head states. A header that the rest of the head
/// contradicts is removed.
fn take_problem(parts: &mut Parts) -> Option<StatedProblem> {
    if !parts.headers.contains_key(IDEMPOTENCY_PROBLEM) {
        return None;
    }
    let problem = StatedProblem::of(parts);
    if problem.is_none() {
        parts.headers.remove(IDEMPOTENCY_PROBLEM);
    }
    problem
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

/// The answer for the record; or, if it is not recorded, for those who joined, who then get what
/// its
/// owner gets.
fn encode(
    parts: &Parts,
    whole: &Whole,
    route: Route<'_>,
    facts: Facts,
    verdict: Verdict,
) -> Answer {
    // The head of an answer that is trailers only is its trailers, and the head of a problem says
    // whether to retry.
    let whole_head = facts.grpc_status.is_some() || facts.problem.is_some();
    let has_trailers = whole.trailers().is_some();
    let keeps = |name: &HeaderName| {
        let taken = match verdict {
            _ if !route.guarded => kept::is_shared(name),
            Verdict::Completed if whole_head => kept::may_be_kept(name),
            Verdict::Completed => route.kept.keeps(name, facts.grpc),
            Verdict::Retry | Verdict::Unknown => kept::is_shared(name),
        };
        // With a length, HTTP/1.1 has no trailers.
        taken && !(has_trailers && *name == header::CONTENT_LENGTH)
    };
    let mut headers = Vec::with_capacity(parts.headers.len());
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
    if bytes > FIELD_BYTES_MAX {
        return not_retained(facts.status, verdict);
    }
    Answer::encode(facts.status, &headers, &trailers, whole.data())
}

#[cfg(test)]
mod tests;
