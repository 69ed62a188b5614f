//! Graceful shutdown in phases. Every task can watch the phase.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{sync::watch, task::unconstrained};

/// A phase of the shutdown. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ShutdownPhase {
    #[default]
    Serving,
    /// No connection is accepted; each response has `Connection: close`.
    Draining,
    /// Idle connections are closed.
    Closing,
    /// Remaining connections are cut off.
    Ended,
}

/// Receives shutdown phase changes.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<ShutdownPhase>);

/// Announces shutdown phases.
#[derive(Debug)]
pub(crate) struct ShutdownTrigger(watch::Sender<ShutdownPhase>);

impl ShutdownTrigger {
    pub(crate) fn new() -> (Self, Shutdown) {
        let (sender, receiver) = watch::channel(ShutdownPhase::Serving);
        (Self(sender), Shutdown(receiver))
    }

    pub(crate) fn enter(&self, phase: ShutdownPhase) {
        self.0.send_replace(phase);
    }
}

impl Shutdown {
    /// Waits for a phase. Also returns when the trigger is dropped.
    pub(crate) async fn wait_for(&mut self, phase: ShutdownPhase) {
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.phase() >= ShutdownPhase::Draining
    }

    pub(crate) fn phase(&self) -> ShutdownPhase {
        *self.0.borrow()
    }
}

/// Polls for a phase from a task that also does other work.
pub(crate) struct ShutdownListener {
    shutdown: Shutdown,
    wait: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_registered: bool,
    is_reached: bool,
}

impl ShutdownListener {
    pub(crate) fn new(shutdown: &Shutdown, phase: ShutdownPhase) -> Self {
        let mut listener = shutdown.clone();
        // Unconstrained: a poll must register the waker even if the connection has used up the
        // budget of its task.
        let wait = Box::pin(unconstrained(async move { listener.wait_for(phase).await }));
        Self { shutdown: shutdown.clone(), wait, is_registered: false, is_reached: false }
    }

    /// Ready once the phase is reached, and from then on. Only one task may poll.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Reading the phase is cheaper than polling the channel, and the registered waker stays the
        // same. After the first phase change every poll goes to the channel: the phase can be
        // visible before the notification arrives, and a notification uses up the registered waker.
        if !self.is_reached {
            if self.is_registered && self.shutdown.phase() == ShutdownPhase::Serving {
                return Poll::Pending;
            }
            self.is_registered = true;
            ready!(self.wait.as_mut().poll(context));
            self.is_reached = true;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for ShutdownListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownListener")
            .field("is_reached", &self.is_reached)
            .finish_non_exhaustive()
    }
}
