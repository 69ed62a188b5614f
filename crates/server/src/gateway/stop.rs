//! How a gateway comes to its end, in phases that everybody can see.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{sync::watch, task::unconstrained};

/// A phase of the end. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Serving,
    /// Nobody new is let in; each answer says that it is the last on its connection.
    Draining,
    /// Connections that are idle are closed.
    Closing,
    /// Whatever is left is cut.
    Ended,
}

/// Who sees the phases.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<Phase>);

/// Who sets them.
#[derive(Debug)]
pub(crate) struct Stopper(watch::Sender<Phase>);

impl Stopper {
    pub(crate) fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(Phase::Serving);
        (Self(sender), Stop(receiver))
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.0.send_replace(phase);
    }
}

impl Stop {
    /// Waits for a phase. Nobody left to set it is the end.
    pub(crate) async fn reached(&mut self, phase: Phase) {
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.phase() >= Phase::Draining
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.0.borrow()
    }
}

/// Hears of a phase, beside whatever else a task does.
pub(crate) struct Ear {
    stop: Stop,
    reached: Pin<Box<dyn Future<Output = ()> + Send>>,
    listens: bool,
    has_heard: bool,
}

impl Ear {
    pub(crate) fn new(stop: &Stop, phase: Phase) -> Self {
        let mut listener = stop.clone();
        // It must listen when it is asked to, even if a connection has used up what its task may
        // do at a time.
        let reached = Box::pin(unconstrained(async move { listener.reached(phase).await }));
        Self { stop: stop.clone(), reached, listens: false, has_heard: false }
    }

    /// Ready once the phase is reached, and from then on. To be asked by one task only.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // To look at the phase is cheaper than to listen for the next one, and whom to wake stays
        // the same. From the first change on it is asked every time: a phase can be seen before
        // its word arrives, and whoever had that word must listen again.
        if !self.has_heard {
            if self.listens && self.stop.phase() == Phase::Serving {
                return Poll::Pending;
            }
            self.listens = true;
            ready!(self.reached.as_mut().poll(context));
            self.has_heard = true;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ear").field("has_heard", &self.has_heard).finish_non_exhaustive()
    }
}
