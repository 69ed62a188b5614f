//! What listens to a body on its way: to a request's for what it says, to an answer's for its end.

use std::{any::Any, thread};

use bytes::Bytes;
use http::{HeaderMap, response::Parts};
use http_body::{Body, Frame};
use semel::core::{Answer, ExecutionResult, Policy, Problem, Reason, Verdict};
use tokio::sync::oneshot;

use crate::{
    BoxError, NeverReached,
    body::Whole,
    capture::{self, Facts, Judgement},
    gather::Gather,
    upstream_problem::DOCUMENT_BYTES_MAX,
};

/// Listens to a body.
#[derive(Debug)]
pub(crate) enum Ear {
    Request(RequestEar),
    Answer(AnswerEar),
}

impl Ear {
    /// Hears a frame, or the end. `ended` is whether the body says that nothing follows, since then
    /// it may not be asked again.
    pub(crate) fn hear(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        match self {
            Self::Request(ear) => ear.hear(frame, ended),
            Self::Answer(ear) => ear.hear(frame, ended),
        }
    }
}

/// What was heard of a request's body.
#[derive(Debug)]
pub(crate) enum Heard {
    Whole(Bytes),
    /// It is too large, or it broke off.
    Refused(Problem),
}

/// Copies a body up to a limit. If it is dropped before it could tell anything, the service did not
/// read the body.
#[derive(Debug)]
pub(crate) struct RequestEar {
    gather: Gather,
    max: usize,
    tell: Option<oneshot::Sender<Heard>>,
}

impl RequestEar {
    pub(crate) fn new<B: Body>(body: &B, max: usize, tell: oneshot::Sender<Heard>) -> Self {
        let mut ear = Self { gather: Gather::default(), max, tell: Some(tell) };
        if body.is_end_stream() {
            ear.finish();
        }
        ear
    }

    fn hear(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        if self.tell.is_none() {
            return;
        }
        match frame {
            Some(Err(error)) => return self.tell(Heard::Refused(super::broken(error))),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.gather.add(data.clone());
                }
            }
            None => {}
        }
        if self.gather.length() > self.max {
            self.gather = Gather::default();
            self.tell(Heard::Refused(Problem::BodyTooLarge));
        } else if ended || frame.is_none() {
            self.finish();
        }
    }

    fn finish(&mut self) {
        let whole = std::mem::take(&mut self.gather).finish();
        self.tell(Heard::Whole(whole.data().clone()));
    }

    fn tell(&mut self, heard: Heard) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(heard);
        }
    }
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum End {
    Answered { facts: Facts, retained: bool, whole: Whole },
    Otherwise(ExecutionResult),
}

impl End {
    /// What a guarded answer would have made of its record.
    pub(crate) fn judge(self, policy: &Policy) -> ExecutionResult {
        let (mut facts, retained, mut whole) = match self {
            Self::Answered { facts, retained, whole } => (facts, retained, whole),
            Self::Otherwise(ended) => return ended,
        };
        facts.read_body(&whole);
        let judgement = facts.judge(policy, whole.trailers_mut());
        // Of an answer that would have been kept, only that it would is remembered.
        let answer = match retained {
            true => Answer::encode(facts.status, &[], &[], &[]),
            false => Answer::not_retained(facts.status),
        };
        let Judgement { verdict, reason, .. } = judgement;
        ExecutionResult::Answered { verdict, answer, reason }
    }
}

/// Waits for the end of an answer, and tells it. By which policy it is judged may depend on what
/// the body of the request says, which may come later.
#[derive(Debug)]
pub(crate) struct AnswerEar {
    /// The most that is retained.
    max: usize,
    /// Whether the request is gRPC.
    grpc: bool,
    head: Option<Head>,
    tell: Option<oneshot::Sender<End>>,
}

#[derive(Debug)]
struct Head {
    facts: Facts,
    /// Whether the body would have been recorded too, as far as it is known.
    retained: bool,
    bytes: usize,
    /// The body, where it decides what the answer is and is small enough for that.
    document: Gather,
}

/// The status that is written down where a client was gone before there was one.
const CLIENT_GONE: u16 = 499;

impl AnswerEar {
    pub(crate) const fn new(max: usize, grpc: bool, tell: oneshot::Sender<End>) -> Self {
        Self { max, grpc, head: None, tell: Some(tell) }
    }

    /// Hears the head of the answer.
    pub(crate) fn begin<B: Body>(&mut self, parts: &Parts, body: &B) {
        let retained = !capture::is_stream(parts, body, self.max);
        // Reading the head takes from it what is meant for a layer that guards.
        let facts = Facts::take(&mut parts.clone(), self.grpc);
        self.head = Some(Head { facts, retained, bytes: 0, document: Gather::default() });
        if body.is_end_stream() {
            self.answered(None);
        }
    }

    /// There is no answer, but an error, which goes on to whoever called. What it is can only be
    /// seen of the kinds that are known here.
    pub(crate) fn fail<E: 'static>(&mut self, error: &E) {
        let error: &dyn Any = error;
        let ended = match error.downcast_ref::<BoxError>() {
            Some(error) => capture::failed(&**error),
            None if error.is::<NeverReached>() => ExecutionResult::NeverReached,
            None => ExecutionResult::Broken(Reason::OperationError),
        };
        self.tell(End::Otherwise(ended));
    }

    fn hear(&mut self, frame: Option<&Result<Frame<Bytes>, BoxError>>, ended: bool) {
        let mut trailers = None;
        match frame {
            Some(Err(error)) => return self.broke(error),
            Some(Ok(frame)) => {
                trailers = frame.trailers_ref().cloned();
                if let (Some(data), Some(head)) = (frame.data_ref(), &mut self.head) {
                    head.bytes = head.bytes.saturating_add(data.len());
                    head.retained &= head.bytes <= self.max;
                    // One byte more than is read: then it is seen to be too long.
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
            Some(Head { facts, .. }) if facts.is_final() => {
                self.tell(End::Answered { facts, retained: false, whole: Whole::default() });
            }
            head => {
                let bytes = head.map_or(0, |head| head.bytes);
                let reason = capture::lost_after(bytes, error);
                self.tell(End::Otherwise(ExecutionResult::Broken(reason)));
            }
        }
    }

    fn answered(&mut self, trailers: Option<HeaderMap>) {
        let Some(Head { facts, retained, document, .. }) = self.head.take() else { return };
        let whole = Whole::new(document.finish().data().clone(), trailers);
        self.tell(End::Answered { facts, retained, whole });
    }

    fn tell(&mut self, end: End) {
        if let Some(tell) = self.tell.take() {
            let _ = tell.send(end);
        }
    }
}

impl Drop for AnswerEar {
    /// A client that hangs up takes the request with it, here. A layer that guards would have let
    /// it go on, and a repeat would have got its answer.
    fn drop(&mut self) {
        if self.tell.is_none() {
            return;
        }
        if thread::panicking() {
            self.tell(End::Otherwise(ExecutionResult::Broken(Reason::Panicked)));
        } else if self.head.is_some() {
            self.answered(None);
        } else {
            let answer = Answer::encode(CLIENT_GONE, &[], &[], &[]);
            let reason = Reason::Answered(CLIENT_GONE);
            let ended = ExecutionResult::Answered { verdict: Verdict::Completed, answer, reason };
            self.tell(End::Otherwise(ended));
        }
    }
}
