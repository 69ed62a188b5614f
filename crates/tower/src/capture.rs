//! From the answer of the inner service to what is recorded, and to what its client gets.

use std::{
    error, fmt,
    pin::{Pin, pin},
};

use bytes::Bytes;
use http::{HeaderMap, Response, header, response::Parts};
use http_body::Body;
use semel::core::{Answer, AnswerFacts, Ended, Grpc, Policy, Verdict};
use tokio::sync::oneshot;

use crate::{
    BoxError,
    body::{Pieces, Whole},
    gather::{Filled, Gather},
    grpc,
    header::IDEMPOTENCY_OUTCOME,
    kept::Kept,
    pump,
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

/// What the execution hands to the client that began it.
#[derive(Debug)]
pub(crate) enum Handed {
    /// Goes out when it is recorded.
    Whole(Parts, Whole),
    /// Goes out as it comes.
    Live(Parts, Pieces),
}

/// Takes an answer to its end: hands it over, and says what is to be recorded.
pub(crate) async fn capture<B>(
    response: Response<B>,
    kept: &Kept,
    policy: &Policy,
    client: oneshot::Sender<Handed>,
) -> Ended
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let facts = Facts::take(&mut parts);
    let mut body = pin!(body);
    let mut gather = Gather::default();
    let max = policy.response_bytes_max;
    if !is_stream(&parts, &*body, max) {
        match gather.fill(body.as_mut(), max).await {
            Ok(Filled::Whole) => {
                let whole = gather.finish();
                let verdict = facts.verdict(policy, whole.trailers());
                let answer = encode(&parts, &whole, kept, facts.grpc);
                // Nobody there: the client hung up, and the operation counts all the same.
                let _ = client.send(Handed::Whole(parts, whole));
                return Ended::Answered { verdict, answer };
            }
            Ok(Filled::Over) => {}
            Err(_) => return Ended::Broken,
        }
    }
    // Most answers do not come this far, so that it is not part of their future.
    Box::pin(pass_on(parts, facts, body, gather.finish().data().clone(), policy, client)).await
}

/// Hands an answer over as it comes.
async fn pass_on<B>(
    parts: Parts,
    facts: Facts,
    body: Pin<&mut B>,
    begun: Bytes,
    policy: &Policy,
    client: oneshot::Sender<Handed>,
) -> Ended
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let begun_bytes = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let bytes = body.size_hint().exact().map(|rest| rest.saturating_add(begun_bytes));
    let (mut tap, pieces) = pump::pipe(bytes);
    let _ = client.send(Handed::Live(parts, pieces));
    match pump::pump(body, begun, &mut tap).await {
        Ok(last) => {
            let verdict = facts.verdict(policy, last.trailers());
            tap.finish(last);
            Ended::Answered { verdict, answer: Answer::not_retained(facts.status) }
        }
        Err(pump::Broken) => Ended::Broken,
    }
}

/// Whether an answer is passed on as it comes. One that is over already has nothing to pass on.
fn is_stream<B: Body>(parts: &Parts, body: &B, max: usize) -> bool {
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
struct Facts {
    status: u16,
    said: Option<Verdict>,
    grpc: bool,
    /// The gRPC status of an answer that is trailers only.
    grpc_status: Option<u16>,
}

impl Facts {
    /// Reads the head, and removes from it what is meant for us.
    fn take(parts: &mut Parts) -> Self {
        let grpc = grpc::is_grpc(&parts.headers);
        Self {
            status: parts.status.as_u16(),
            said: take_said(parts),
            grpc,
            grpc_status: if grpc { grpc::status(&parts.headers) } else { None },
        }
    }

    fn verdict(&self, policy: &Policy, trailers: Option<&HeaderMap>) -> Verdict {
        let status = || trailers.and_then(grpc::status).or(self.grpc_status);
        let grpc = match self.grpc.then(status) {
            None => Grpc::No,
            Some(None) => Grpc::NoTrailers,
            Some(Some(code)) => Grpc::Status(code),
        };
        policy.verdict(&AnswerFacts { status: self.status, grpc, said: self.said })
    }
}

/// What the service says its answer makes of the operation, in a header or else in an extension. A
/// header that cannot be understood, or says two things, leaves the outcome unknown.
fn take_said(parts: &mut Parts) -> Option<Verdict> {
    let extension = parts.extensions.remove::<Verdict>();
    let mut lines = parts.headers.get_all(IDEMPOTENCY_OUTCOME).iter();
    let Some(first) = lines.next() else { return extension };
    let first = Verdict::from_header(first.as_bytes()).unwrap_or(Verdict::Unknown);
    let agree = lines.all(|line| Verdict::from_header(line.as_bytes()) == Some(first));
    parts.headers.remove(IDEMPOTENCY_OUTCOME);
    Some(if agree { first } else { Verdict::Unknown })
}

fn encode(parts: &Parts, whole: &Whole, kept: &Kept, grpc: bool) -> Answer {
    let mut headers = Vec::with_capacity(parts.headers.len());
    for (name, value) in &parts.headers {
        if kept.keeps(name, grpc) {
            headers.push((name.as_str().as_bytes(), value.as_bytes()));
        }
    }
    let trailers: Vec<_> = whole
        .trailers()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
        .collect();
    Answer::encode(parts.status.as_u16(), &headers, &trailers, whole.data())
}

#[cfg(test)]
mod tests;
