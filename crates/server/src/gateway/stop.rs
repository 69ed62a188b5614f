//! How a gateway comes to its end, in phases that everybody can see.

use tokio::sync::watch;

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
