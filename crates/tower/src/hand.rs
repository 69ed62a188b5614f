//! From the execution to the client that began it.

use std::{
    sync::{Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker},
};

use http::response::Parts;
use semel::Lease;

use crate::body::{Pieces, Whole};

/// What an execution hands over.
#[derive(Debug)]
pub(crate) enum Handed {
    /// Goes out when it is recorded.
    Whole(Parts, Whole),
    /// Goes out as it comes.
    Live(Parts, Pieces),
    /// Broke off. What has come goes out when its record says what became of it.
    Cut(Parts, Pieces),
}

/// Where an execution leaves its answer. The client is woken only for an answer that goes out at
/// once: for any other it waits until the engine says that it is recorded.
#[derive(Debug, Default)]
pub(crate) struct Hand(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    handed: Option<Handed>,
    lease: Option<Lease>,
    waker: Option<Waker>,
}

/// Hands over to a client, unless it is gone; then what was to be handed over is dropped, and its
/// pump notices.
pub(crate) fn leave(client: &Weak<Hand>, handed: Handed) {
    if let Some(hand) = client.upgrade() {
        hand.leave(handed);
    }
}

impl Hand {
    fn leave(&self, handed: Handed) {
        let mut state = self.state();
        let waker = match &handed {
            Handed::Live(..) => state.waker.take(),
            Handed::Whole(..) | Handed::Cut(..) => None,
        };
        state.handed = Some(handed);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Says that an execution has begun.
    pub(crate) fn begin(&self, lease: Lease) {
        self.state().lease = Some(lease);
    }

    /// The execution, if one has begun.
    pub(crate) fn lease(&self) -> Option<Lease> {
        self.state().lease.clone()
    }

    /// What was left, if anything was.
    pub(crate) fn take(&self) -> Option<Handed> {
        self.state().handed.take()
    }

    /// An answer that goes out as it comes.
    pub(crate) fn poll_live(&self, context: &mut Context<'_>) -> Poll<(Parts, Pieces)> {
        let mut state = self.state();
        match state.handed.take() {
            Some(Handed::Live(parts, pieces)) => return Poll::Ready((parts, pieces)),
            whole => state.handed = whole,
        }
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
