//! Tees on observed bodies: one copies a request body, the other waits for the end of an answer.

use std::{any::Any, thread};

use bytes::Bytes;
use http::{HeaderMap, response::Parts};
use http_body::{Body, Frame};
use semel::core::{Answer, ExecutionResult, Policy, Problem, Reason, Verdict};
use tokio::sync::oneshot;

use crate::{
    BoxError, NeverReached,
    buffered_body::BufferedBody,
    collect::BodyCollector,
    handler_signals,
    memory::Reservation,
    request,
    response_facts::{Judgement, ResponseFacts},
    upstream_problem::DOCUMENT_BYTES_MAX,
};

/// Observes the frames of a body.
#[derive(Debug)]
pub(crate) enum BodyTee {
    Request(RequestTee),
    Response(ResponseTee),
}

impl BodyTee {
    /// Takes a frame, or the end. `ended` is whether the body reports its end, since then it may
    /// not be polled again.
    pub(crate) fn on_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        match self {
            Self::Request(tee) => tee.on_frame(frame, ended),
            Self::Response(tee) => tee.on_frame(frame, ended),
        }
    }
}

/// The observed request body.
#[derive(Debug)]
pub(crate) enum ObservedBody {
    Complete(Bytes),
    /// It is too large, or it was truncated.
    Refused(Problem),
}

/// Copies a body up to a limit. If it is dropped without a report, the service did not read the
/// body.
#[derive(Debug)]
pub(crate) struct RequestTee {
    collector: BodyCollector,
    max: usize,
    report: Option<oneshot::Sender<ObservedBody>>,
}

impl RequestTee {
    pub(crate) fn new<B: Body>(
        body: &B,
        max: usize,
        memory: Option<Reservation>,
        report: oneshot::Sender<ObservedBody>,
    ) -> Self {
        let mut tee =
            Self { collector: BodyCollector::with_reservation(memory), max, report: Some(report) };
        if body.is_end_stream() {
            tee.finish();
        }
        tee
    }

    fn on_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        if self.report.is_none() {
            return;
        }
        match frame {
            Some(Err(error)) => return self.report(ObservedBody::Refused(broken(error))),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref()
                    && !self.collector.add(data.clone())
                {
                    // A guarded request would have been refused here.
                    self.collector = BodyCollector::default();
                    return self.report(ObservedBody::Refused(Problem::TooManyInFlight));
                }
            }
            None => {}
        }
        if self.collector.length() > self.max {
            self.collector = BodyCollector::default();
            self.report(ObservedBody::Refused(Problem::BodyTooLarge));
        } else if ended || frame.is_none() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let buffered = std::mem::take(&mut self.collector).finish_held();
        self.report(ObservedBody::Complete(buffered.data().clone()));
    }

    fn report(&mut self, body: ObservedBody) {
        if let Some(report) = self.report.take() {
            let _ = report.send(body);
        }
    }
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum ResponseEnd {
    Answered { facts: ResponseFacts, retained: bool, buffered: BufferedBody },
    Otherwise(ExecutionResult),
}

impl ResponseEnd {
    /// The result that a guarded execution would have had.
    pub(crate) fn judge(self, policy: &Policy) -> ExecutionResult {
        let (mut facts, retained, mut buffered) = match self {
            Self::Answered { facts, retained, buffered } => (facts, retained, buffered),
            Self::Otherwise(ended) => return ended,
        };
        facts.read_body(&buffered);
        let judgement = facts.judge(policy, buffered.trailers_mut());
        // Only the fact that the answer would have been retained is recorded.
        let answer = match retained {
            true => Answer::encode(facts.status, &[], &[], &[]),
            false => Answer::not_retained(facts.status),
        };
        let Judgement { verdict, reason, .. } = judgement;
        ExecutionResult::Answered { verdict, answer, reason }
    }
}

/// Waits for the end of an answer and reports it. The policy that judges it may depend on the body
/// of the request, which may arrive later.
#[derive(Debug)]
pub(crate) struct ResponseTee {
    /// The maximum size of a retained answer, in bytes.
    max: usize,
    /// Whether the request is gRPC.
    grpc: bool,
    head: Option<ObservedHead>,
    report: Option<oneshot::Sender<ResponseEnd>>,
}

#[derive(Debug)]
struct ObservedHead {
    facts: ResponseFacts,
    /// Whether the body would have been recorded, as far as it is known.
    retained: bool,
    bytes: usize,
    /// The body, if it decides on the answer and is small enough.
    document: BodyCollector,
}

/// The recorded status of a client that disconnected before there was an answer.
const CLIENT_GONE: u16 = 499;

impl ResponseTee {
    pub(crate) const fn new(max: usize, grpc: bool, report: oneshot::Sender<ResponseEnd>) -> Self {
        Self { max, grpc, head: None, report: Some(report) }
    }

    /// Takes the head of the answer.
    pub(crate) fn begin<B: Body>(&mut self, parts: &Parts, body: &B) {
        let retained = !handler_signals::is_stream(parts, body, self.max);
        // Reading the head removes headers that are addressed to a guarding layer.
        let facts = ResponseFacts::take(&mut parts.clone(), self.grpc);
        self.head =
            Some(ObservedHead { facts, retained, bytes: 0, document: BodyCollector::default() });
        if body.is_end_stream() {
            self.answered(None);
        }
    }

    /// The service returned an error, which goes to its caller. Only known types of errors can be
    /// inspected.
    pub(crate) fn fail<E: 'static>(&mut self, error: &E) {
        let error: &dyn Any = error;
        let ended = match error.downcast_ref::<BoxError>() {
            Some(error) => handler_signals::failed(&**error),
            None if error.is::<NeverReached>() => ExecutionResult::NeverReached,
            None => ExecutionResult::Broken(Reason::OperationError),
        };
        self.report(ResponseEnd::Otherwise(ended));
    }

    fn on_frame(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        let mut trailers = None;
        match frame {
            Some(Err(error)) => return self.broke(error),
            Some(Ok(frame)) => {
                trailers = frame.trailers_ref().cloned();
                if let (Some(data), Some(head)) = (frame.data_ref(), &mut self.head) {
                    head.bytes = head.bytes.saturating_add(data.len());
                    head.retained &= head.bytes <= self.max;
                    // One byte more than is read shows that it is too long.
                    if head.facts.needs_body() && head.document.length() <= DOCUMENT_BYTES_MAX {
                        head.document.add(data.clone());
                    }
                }
            }
            None => {}
        }
        if ended || frame.is_none() || trailers.is_some() {
            self.answered(trailers);
        }
    }

    /// The end of the answer cannot be read.
    fn broke(&mut self, error: &BoxError) {
        match self.head.take() {
            Some(ObservedHead { facts, .. }) if facts.is_final() => {
                self.report(ResponseEnd::Answered {
                    facts,
                    retained: false,
                    buffered: BufferedBody::default(),
                });
            }
            head => {
                let bytes = head.map_or(0, |head| head.bytes);
                let reason = handler_signals::lost_after(bytes, error);
                self.report(ResponseEnd::Otherwise(ExecutionResult::Broken(reason)));
            }
        }
    }

    fn answered(&mut self, trailers: Option<HeaderMap>) {
        let Some(ObservedHead { facts, retained, document, .. }) = self.head.take() else { return };
        let buffered = BufferedBody::new(document.finish_held().data().clone(), trailers);
        self.report(ResponseEnd::Answered { facts, retained, buffered });
    }

    fn report(&mut self, end: ResponseEnd) {
        if let Some(report) = self.report.take() {
            let _ = report.send(end);
        }
    }
}

impl Drop for ResponseTee {
    /// A client that disconnects cancels an observed request. A guarding layer would have let it
    /// run, and a repeat would have got its answer.
    fn drop(&mut self) {
        if self.report.is_none() {
            return;
        }
        if thread::panicking() {
            self.report(ResponseEnd::Otherwise(ExecutionResult::Broken(Reason::Panicked)));
        } else if self.head.is_some() {
            self.answered(None);
        } else {
            let answer = Answer::encode(CLIENT_GONE, &[], &[], &[]);
            let reason = Reason::Answered(CLIENT_GONE);
            let ended = ExecutionResult::Answered { verdict: Verdict::Completed, answer, reason };
            self.report(ResponseEnd::Otherwise(ended));
        }
    }
}

/// The problem of a body that fails.
fn broken(error: &BoxError) -> Problem {
    if request::is_over_a_limit(&**error) { Problem::BodyTooLarge } else { Problem::BodyMalformed }
}
