//! From the answer of the inner service to the record and to the client.

pub(crate) mod encode;
pub(crate) mod stream_through;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response::Parts};
use semel::{
    EventKind, ExecutionOutput, Lease,
    core::{Answer, Content, ExecutionResult, Policy},
};

use self::encode::{encode, not_retained};
use crate::{
    BoxError,
    buffered_body::{BufferedBody, ChunkReceiver},
    collect::{BodyCollector, CollectResult},
    config::LayerConfig,
    handler_signals::{is_stream, lost_after},
    memory::Reservation,
    response_facts::{Judgement, ResponseFacts},
};

/// A body of at least this size is sent from the memory of its record.
const SHARED_BYTES_MIN: usize = 16 << 10;

/// The answer of an execution, for the client that began it.
#[derive(Debug)]
pub(crate) enum HandlerResponse {
    /// Read to its end.
    Buffered(Parts, BufferedBody),
    /// Streamed through, or the received part of a truncated one.
    Chunks(Parts, ChunkReceiver),
}

/// The execution whose answer is captured.
pub(crate) struct CaptureContext {
    pub(crate) config: Arc<LayerConfig>,
    pub(crate) policy: Arc<Policy>,
    pub(crate) lease: Lease,
    /// Whether the request is gRPC.
    pub(crate) grpc: bool,
}

impl CaptureContext {
    /// Reports an `Idempotency-Outcome` that contradicts the status of its answer.
    fn report(&self, facts: &ResponseFacts, judgement: &Judgement) {
        if let Some(outcome) = judgement.contradicted {
            let status = facts.status;
            self.report_event(EventKind::OutcomeContradicted { outcome, status });
        }
    }

    fn report_event(&self, kind: EventKind<'_>) {
        self.config.semel.report_on(&self.lease, kind);
    }
}

/// Reads an answer: to its end, or streams it through while the rest of the execution runs.
pub(crate) fn capture<B>(
    response: Response<B>,
    route: CaptureContext,
    memory: Option<Reservation>,
) -> impl Future<Output = ExecutionOutput<HandlerResponse>> + Send
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let mut facts = ResponseFacts::take(&mut parts, route.grpc);
    // Boxed, because a body that is streamed through moves once it was polled. Not an `async fn`,
    // which would store its arguments twice.
    let mut body = Box::pin(body);
    async move {
        let mut collector = BodyCollector::with_reservation(memory);
        let max = route.policy.response_bytes_max;
        if !is_stream(&parts, &*body, max) {
            match collect(&mut collector, body.as_mut(), max, route.config.read_on).await {
                Ok(CollectResult::Complete) => {
                    return complete_response(parts, facts, collector, &route);
                }
                Ok(CollectResult::TooLarge) => {}
                // The operation has run, so it is recorded; its answer is streamed through like one
                // that is too large.
                Ok(CollectResult::OutOfMemory) => route.report_event(EventKind::NotRetained),
                Err(error) => {
                    return truncated_response(parts, facts, collector, error.into(), &route);
                }
            }
        }
        facts.forget_problem();
        facts.strip_problem(&mut parts);
        let begun = collector.finish_held().data().clone();
        stream_response(parts, facts, body, begun, route)
    }
}

/// Reads an answer up to a limit. One that is larger than the memory that it already has waits for
/// the rest of it, for as long as it could be read after its client is gone. It takes that in one
/// step: as much as it announces, or as it may have.
async fn collect<B>(
    collector: &mut BodyCollector,
    mut body: Pin<&mut B>,
    max: usize,
    wait_max: Duration,
) -> Result<CollectResult, B::Error>
where
    B: http_body::Body<Data = Bytes>,
{
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if let Some(bytes) = announced.filter(|bytes| !collector.reserve(*bytes))
        // Boxed, because most answers do not get here and their future should stay small.
        && !Box::pin(collector.reserve_answer(bytes, wait_max)).await
    {
        return Ok(CollectResult::OutOfMemory);
    }
    let result = collector.fill(body.as_mut(), max).await?;
    let bytes_max = collector.answer_bytes_max(max);
    if result == CollectResult::OutOfMemory
        && Box::pin(collector.reserve_answer(bytes_max, wait_max)).await
    {
        return collector.fill(body, max).await;
    }
    Ok(result)
}

/// An answer that was read to its end: its client gets it once it is recorded.
fn complete_response(
    mut parts: Parts,
    mut facts: ResponseFacts,
    collector: BodyCollector,
    route: &CaptureContext,
) -> ExecutionOutput<HandlerResponse> {
    let (mut buffered, memory) = collector.finish();
    drop_wrong_length(&mut parts, &buffered);
    if facts.needs_body() {
        facts.read_body(&buffered);
        facts.strip_problem(&mut parts);
    }
    let judgement = facts.judge(&route.policy, buffered.trailers_mut());
    route.report(&facts, &judgement);
    let Judgement { verdict, reason, .. } = judgement;
    let answer = encode(&parts, &buffered, route, facts, verdict);
    share_body(&mut buffered, &answer);
    buffered.hold(memory);
    let result = ExecutionResult::Answered { verdict, answer, reason };
    ExecutionOutput::Ended(result, Some(HandlerResponse::Buffered(parts, buffered)))
}

/// An answer that was truncated before any of it was sent. If its head decides, its client gets the
/// received part once that is recorded; otherwise the outcome is unknown.
fn truncated_response(
    mut parts: Parts,
    mut facts: ResponseFacts,
    collector: BodyCollector,
    error: BoxError,
    route: &CaptureContext,
) -> ExecutionOutput<HandlerResponse> {
    let begun = collector.finish_held().data().clone();
    let Some(judgement) = facts.judge_head(&route.policy) else {
        let reason = lost_after(begun.len(), &error);
        return ExecutionOutput::Ended(ExecutionResult::Broken(reason), None);
    };
    facts.forget_problem();
    facts.strip_problem(&mut parts);
    let response = HandlerResponse::Chunks(parts, stream_through::truncated(begun, error));
    ExecutionOutput::Ended(by_head(facts, judgement, route), Some(response))
}

/// Sends the body from the memory of the record, so that a large one is not in memory twice.
fn share_body(buffered: &mut BufferedBody, answer: &Answer) {
    let length = buffered.data().len();
    if length < SHARED_BYTES_MIN {
        return;
    }
    if let Ok(Content::Response(stored)) = answer.read()
        && stored.body == buffered.data()
    {
        buffered.replace_data(stored.body);
    }
}

/// Removes a `Content-Length` that differs from the body: the rest of the body would look like the
/// next answer, now and at every replay. A service that writes its own framing may send one.
fn drop_wrong_length(parts: &mut Parts, buffered: &BufferedBody) {
    let length = buffered.data().len().to_string();
    let wrong = |line: &HeaderValue| line.as_bytes() != length.as_bytes();
    let lines = parts.headers.get_all(header::CONTENT_LENGTH);
    if parts.status != StatusCode::NOT_MODIFIED && lines.iter().any(wrong) {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
}

/// Streams an answer through: its client gets the head now, and the body while it is read.
fn stream_response<B>(
    parts: Parts,
    facts: ResponseFacts,
    body: Pin<Box<B>>,
    begun: Bytes,
    route: CaptureContext,
) -> ExecutionOutput<HandlerResponse>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let begun_bytes = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let bytes = body.size_hint().exact().map(|rest| rest.saturating_add(begun_bytes));
    let (mut sender, chunks) = stream_through::stream_channel(bytes, route.config.read_on);
    let rest = async move {
        match stream_through::stream_through(body, begun, &mut sender).await {
            Ok(mut last) => {
                let judgement = facts.judge(&route.policy, last.trailers_mut());
                sender.finish(last);
                by_head(facts, judgement, &route)
            }
            Err(reason) => match facts.judge_head(&route.policy) {
                Some(judgement) => by_head(facts, judgement, &route),
                None => ExecutionResult::Broken(reason),
            },
        }
    };
    ExecutionOutput::Early(HandlerResponse::Chunks(parts, chunks), Box::pin(rest))
}

/// An answer of which only the status is recorded.
fn by_head(facts: ResponseFacts, judgement: Judgement, route: &CaptureContext) -> ExecutionResult {
    route.report(&facts, &judgement);
    let Judgement { verdict, reason, .. } = judgement;
    ExecutionResult::Answered {
        verdict,
        answer: not_retained(facts.status, verdict, route),
        reason,
    }
}

#[cfg(test)]
mod tests;
