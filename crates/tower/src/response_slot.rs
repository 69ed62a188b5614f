//! Passes the answer of an execution to the client that began it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use http::response::Parts;
use semel::Lease;

use crate::buffered_body::{BufferedBody, ChunkReceiver};

/// The answer of an execution.
#[derive(Debug)]
pub(crate) enum HandlerResponse {
    /// Sent when it is recorded.
    Buffered(Parts, BufferedBody),
    /// Streamed through.
    Streaming(Parts, ChunkReceiver),
    /// Truncated. The received part is sent when the record is settled.
    Truncated(Parts, ChunkReceiver),
}

/// Where an execution stores its answer. The client is woken only for a streamed answer: for any
/// other it waits until the engine has recorded it.
#[derive(Debug, Default)]
pub(crate) struct ResponseSlot(Mutex<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    response: Option<HandlerResponse>,
    lease: Option<Lease>,
    waker: Option<Waker>,
}

/// Passes an answer to a client. If the client is gone the answer is dropped, which ends its
/// stream.
pub(crate) fn put(client: &Weak<ResponseSlot>, response: HandlerResponse) {
    if let Some(slot) = client.upgrade() {
        slot.put(response);
    }
}

impl ResponseSlot {
    fn put(&self, response: HandlerResponse) {
        let mut state = self.state();
        let waker = match &response {
            HandlerResponse::Streaming(..) => state.waker.take(),
            HandlerResponse::Buffered(..) | HandlerResponse::Truncated(..) => None,
        };
        state.response = Some(response);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stores that an execution has begun.
    pub(crate) fn begin(&self, lease: Lease) {
        self.state().lease = Some(lease);
    }

    /// The execution, if one has begun.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.state().lease.clone()
    }

    /// Takes the answer, if there is one.
    pub(crate) fn take(&self) -> Option<HandlerResponse> {
        self.state().response.take()
    }

    /// Waits for a streamed answer.
    pub(crate) fn poll_streaming(&self, context: &mut Context<'_>) -> Poll<(Parts, ChunkReceiver)> {
        let mut state = self.state();
        match state.response.take() {
            Some(HandlerResponse::Streaming(parts, chunks)) => return Poll::Ready((parts, chunks)),
            buffered => state.response = buffered,
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
