//! From the answer of the inner service to what is recorded, and to what its client gets.

mod encode;
mod facts;

use std::{
    error, fmt,
    pin::{Pin, pin},
    sync::Weak,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::Body;
use semel::core::{ExecutionResult, Policy, Reason, Verdict};

pub use self::encode::RecordContent;
use self::encode::{encode, not_retained};
use crate::{
    BoxError,
    body::Whole,
    gather::{Filled, Gather},
    hand::{self, Hand, Handed},
    kept::Kept,
    pump,
};

pub(crate) use self::facts::{Facts, Judgement};

/// Says that an answer is a stream: a response extension for handlers.
///
/// Such an answer is passed on as it comes, whatever its size. What it says cannot be replayed, so
/// a repeat gets 410 `response-not-retained`. `text/event-stream` and whatever is larger than
/// `response_bytes_max` are treated so without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming;

/// Says that only the end of its connection ends an answer, and that the answer did not announce
/// it: a response extension for inner services that forward requests.
///
/// Such an answer looks the same whole and cut short, so it is passed on and not retained: a repeat
/// gets 410 `response-not-retained`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndsWithConnection;

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

/// Says how a call broke after the request went out: an error for inner services that forward
/// requests.
///
/// When the inner service or the body of its answer fails with an error that is this one, or that
/// has it among its [sources](error::Error::source), then this is the reason that the record gives
/// for its unknown outcome. Without it the reason is that the operation returned an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallBroken(pub Reason);

impl fmt::Display for CallBroken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for CallBroken {}

/// An error and what caused it.
fn chain<'a>(
    error: &'a (dyn error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// The reason that an error gives, if it does.
pub(crate) fn reason_of(error: &(dyn error::Error + 'static)) -> Option<Reason> {
    let broken = chain(error).find_map(|error| error.downcast_ref::<CallBroken>());
    broken.map(|CallBroken(reason)| reason.clone())
}

/// How an execution ended whose service failed with this error.
pub(crate) fn failed(error: &(dyn error::Error + 'static)) -> ExecutionResult {
    if chain(error).any(|error| error.is::<NeverReached>()) {
        return ExecutionResult::NeverReached;
    }
    ExecutionResult::Broken(reason_of(error).unwrap_or(Reason::OperationError))
}

/// What of its route an answer is judged by.
#[derive(Clone, Copy)]
pub(crate) struct Route<'a> {
    pub(crate) kept: &'a Kept,
    pub(crate) policy: &'a Policy,
    pub(crate) content: &'a RecordContent,
    /// How long an answer is read on after its client left.
    pub(crate) read_on: Duration,
    /// Whether the request is gRPC.
    pub(crate) grpc: bool,
    /// Called where `Idempotency-Outcome` contradicts the status of its answer, with both.
    pub(crate) on_contradiction: &'a (dyn Fn(Verdict, u16) + Sync),
}

impl Route<'_> {
    fn report(&self, facts: &Facts, judgement: &Judgement) {
        if let Some(said) = judgement.contradicted {
            (self.on_contradiction)(said, facts.status);
        }
    }
}

/// Takes an answer to its end: hands it over, and says what is to be recorded.
pub(crate) fn capture<B>(
    response: Response<B>,
    route: Route<'_>,
    client: &Weak<Hand>,
) -> impl Future<Output = ExecutionResult> + Send
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let mut facts = Facts::take(&mut parts, route.grpc);
    // Not an `async fn`, which would keep its arguments twice.
    async move {
        let mut body = pin!(body);
        let mut gather = Gather::default();
        let max = route.policy.response_bytes_max;
        if !is_stream(&parts, &*body, max) {
            match gather.fill(body.as_mut(), max).await {
                Ok(Filled::Whole) => return whole(parts, facts, gather.finish(), route, client),
                Ok(Filled::Over) => {}
                Err(error) => return cut(parts, facts, gather, error.into(), route, client),
            }
        }
        facts.forget_problem();
        facts.strip_problem(&mut parts);
        // Most answers do not come this far, so that it is not part of their future.
        let begun = gather.finish().data().clone();
        Box::pin(pass_on(parts, facts, body, begun, route, client)).await
    }
}

/// An answer that was read to its end: its client gets it once it is recorded.
fn whole(
    mut parts: Parts,
    mut facts: Facts,
    mut whole: Whole,
    route: Route<'_>,
    client: &Weak<Hand>,
) -> ExecutionResult {
    drop_wrong_length(&mut parts, &whole);
    if facts.needs_body() {
        facts.read_body(&whole);
        facts.strip_problem(&mut parts);
    }
    let judgement = facts.judge(route.policy, whole.trailers_mut());
    route.report(&facts, &judgement);
    let Judgement { verdict, reason, .. } = judgement;
    let answer = encode(&parts, &whole, route, facts, verdict);
    hand::leave(client, Handed::Whole(parts, whole));
    ExecutionResult::Answered { verdict, answer, reason }
}

/// An answer that broke off before it was passed on. Where its head decides, its client gets what
/// has come once that is recorded; otherwise nothing was said yet that could be taken for an
/// outcome.
fn cut(
    mut parts: Parts,
    mut facts: Facts,
    gather: Gather,
    error: BoxError,
    route: Route<'_>,
    client: &Weak<Hand>,
) -> ExecutionResult {
    let begun = gather.finish().data().clone();
    let Some(judgement) = facts.judge_head(route.policy) else {
        return ExecutionResult::Broken(lost_after(begun.len(), &error));
    };
    facts.forget_problem();
    facts.strip_problem(&mut parts);
    hand::leave(client, Handed::Cut(parts, pump::cut(begun, error)));
    by_head(facts, judgement, route)
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
    route: Route<'_>,
    client: &Weak<Hand>,
) -> ExecutionResult
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let begun_bytes = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let bytes = body.size_hint().exact().map(|rest| rest.saturating_add(begun_bytes));
    let (mut tap, pieces) = pump::pipe(bytes, route.read_on);
    hand::leave(client, Handed::Live(parts, pieces));
    match pump::pump(body, begun, &mut tap).await {
        Ok(mut last) => {
            let judgement = facts.judge(route.policy, last.trailers_mut());
            tap.finish(last);
            by_head(facts, judgement, route)
        }
        Err(reason) => match facts.judge_head(route.policy) {
            Some(judgement) => by_head(facts, judgement, route),
            None => ExecutionResult::Broken(reason),
        },
    }
}

/// An answer of which no more is recorded than its status.
fn by_head(facts: Facts, judgement: Judgement, route: Route<'_>) -> ExecutionResult {
    route.report(&facts, &judgement);
    let Judgement { verdict, reason, .. } = judgement;
    ExecutionResult::Answered {
        verdict,
        answer: not_retained(facts.status, verdict, route),
        reason,
    }
}

/// Why the end of an answer could not be read, of which so much had come.
pub(crate) fn lost_after(bytes: usize, error: &BoxError) -> Reason {
    let lost = || Reason::ConnectionLost(u64::try_from(bytes).unwrap_or(u64::MAX));
    reason_of(&**error).unwrap_or_else(lost)
}

/// Whether an answer is passed on as it comes. One that is over already has nothing to pass on.
pub(crate) fn is_stream<B: Body>(parts: &Parts, body: &B, max: usize) -> bool {
    let events = || {
        let content_type = parts.headers.get(header::CONTENT_TYPE);
        let essence = content_type.and_then(|value| value.as_bytes().get(..17));
        essence.is_some_and(|essence| essence.eq_ignore_ascii_case(b"text/event-stream"))
    };
    let large = || body.size_hint().lower() > u64::try_from(max).unwrap_or(u64::MAX);
    let marked = || {
        parts.extensions.get::<Streaming>().is_some()
            || parts.extensions.get::<EndsWithConnection>().is_some()
    };
    !body.is_end_stream() && (large() || events() || marked())
}

#[cfg(test)]
mod tests;
