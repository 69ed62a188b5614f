//! The future of a reply.
//!
//! The owner of an execution gets its reply from the driver, which continues even if this future is
//! dropped. A request that joined or waits for another process drives its own state machine here;
//! if it is dropped, no other request is affected.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use semel_core::{Action, Flow, Problem, RecordId, Reply};
use tokio::sync::oneshot;

use super::{BeginRequest, EngineState, watches::PollerStopped};
use crate::{flights::FlightResult, limiter::Permit, observer::EventKind};

/// The future of a reply, from [`Semel::begin`](crate::Semel::begin). Dropping it does not affect
/// the operation.
#[must_use]
pub struct Pending(PendingState);

enum PendingState {
    Ready(Option<Reply>),
    Owner(oneshot::Receiver<DriverMessage>),
    OwnerUntil(Box<DeadlineWait>),
    Waiting(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

/// An owner that does not wait beyond its deadline.
struct DeadlineWait {
    reply_rx: oneshot::Receiver<DriverMessage>,
    deadline: Pin<Box<dyn Future<Output = ()> + Send>>,
    shared: Arc<EngineState>,
    id: RecordId,
}

/// A message of the driver to the request that began the operation.
#[derive(Debug)]
pub(crate) enum DriverMessage {
    Reply(Reply),
    /// Another process runs it: wait for that one.
    WaitRemotely(Box<RemoteWait>),
}

/// A request that waits for another process.
#[derive(Debug)]
pub(crate) struct RemoteWait {
    pub(crate) shared: Arc<EngineState>,
    pub(crate) id: RecordId,
    pub(crate) flow: Flow,
    pub(crate) permit: Permit,
    /// When it began to wait, if an observer is set.
    pub(crate) since: Option<Duration>,
}

impl Pending {
    pub(crate) const fn ready(reply: Reply) -> Self {
        Self(PendingState::Ready(Some(reply)))
    }

    pub(crate) fn owner(
        reply_rx: oneshot::Receiver<DriverMessage>,
        shared: &Arc<EngineState>,
        operation: &BeginRequest,
    ) -> Self {
        Self(match operation.deadline {
            None => PendingState::Owner(reply_rx),
            Some(deadline) => PendingState::OwnerUntil(Box::new(DeadlineWait {
                reply_rx,
                deadline: Box::pin(deadline.wait()),
                shared: Arc::clone(shared),
                id: operation.id.clone(),
            })),
        })
    }

    /// The same future without the deadline of the client, for an answer that is being sent
    /// already.
    pub fn ignore_deadline(self) -> Self {
        match self.0 {
            PendingState::OwnerUntil(wait) => Self(PendingState::Owner(wait.reply_rx)),
            state
            @ (PendingState::Ready(_) | PendingState::Owner(_) | PendingState::Waiting(_)) => {
                Self(state)
            }
        }
    }

    pub(crate) fn joined(
        shared: &Arc<EngineState>,
        id: RecordId,
        flow: Flow,
        result: oneshot::Receiver<FlightResult>,
        permit: Permit,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self(PendingState::Waiting(Box::pin(join(shared, id, flow, result, permit))))
    }
}

impl Future for Pending {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        loop {
            let next = match &mut self.0 {
                PendingState::Ready(reply) => {
                    let reply = reply.take();
                    return Poll::Ready(reply.unwrap_or(Reply::Problem(DRIVER_DROPPED)));
                }
                PendingState::Waiting(waiting) => {
                    PendingState::Ready(Some(ready!(waiting.as_mut().poll(context))))
                }
                PendingState::Owner(reply_rx) => {
                    Self::after(ready!(Pin::new(reply_rx).poll(context)).ok())
                }
                PendingState::OwnerUntil(wait) => {
                    match Pin::new(&mut wait.reply_rx).poll(context) {
                        Poll::Ready(message) => Self::after(message.ok()),
                        Poll::Pending => {
                            ready!(wait.deadline.as_mut().poll(context));
                            let problem = Problem::DeadlineExceededInFlight;
                            PendingState::Ready(Some(wait.shared.refuse(&wait.id, problem)))
                        }
                    }
                }
            };
            self.0 = next;
        }
    }
}

impl Pending {
    /// What follows a message of the driver; `None` if the driver was dropped.
    fn after(message: Option<DriverMessage>) -> PendingState {
        match message {
            Some(DriverMessage::Reply(reply)) => PendingState::Ready(Some(reply)),
            Some(DriverMessage::WaitRemotely(elsewhere)) => {
                PendingState::Waiting(Box::pin(elsewhere.watch()))
            }
            None => PendingState::Ready(Some(Reply::Problem(DRIVER_DROPPED))),
        }
    }
}

/// The reply when the driver task was dropped because its runtime shut down.
const DRIVER_DROPPED: Problem = Problem::OutcomeUnrecorded;

/// Waits for an execution in this process.
async fn join(
    shared: Arc<EngineState>,
    id: RecordId,
    mut flow: Flow,
    mut result: oneshot::Receiver<FlightResult>,
    permit: Permit,
) -> Reply {
    let since = shared.stopwatch();
    let step = tokio::select! {
        biased;
        result = &mut result => match result {
            Ok(FlightResult::Reply(reply)) => flow.on_joined(reply),
            Ok(FlightResult::Elsewhere) => flow.on_elsewhere(shared.clock.now()),
            Err(_) => flow.on_joined(Reply::Problem(DRIVER_DROPPED)),
        },
        () = shared.clock.sleep_until(flow.next_tick()) => flow.on_tick(shared.clock.now()),
    };
    if let Action::Reply(reply) = step {
        shared.emit_waited(&id, &reply, since);
        return reply;
    }
    RemoteWait { shared, id, flow, permit, since }.watch().await
}

impl RemoteWait {
    pub(crate) async fn watch(self) -> Reply {
        let Self { shared, id, mut flow, permit, since } = self;
        shared.events.emit(&id, EventKind::Waiting);
        let mut waiter = shared.watches.wait(&shared, &id);
        let reply = loop {
            let step = tokio::select! {
                biased;
                seen = waiter.seen() => match seen {
                    Ok(seen) => flow.on_seen(seen.as_deref(), shared.clock.now()),
                    Err(PollerStopped) => {
                        waiter = shared.watches.wait(&shared, &id);
                        continue;
                    }
                },
                () = shared.clock.sleep_until(flow.next_tick()) => flow.on_tick(shared.clock.now()),
            };
            if let Action::Reply(reply) = step {
                break reply;
            }
        };
        drop(permit);
        shared.emit_waited(&id, &reply, since);
        reply
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            PendingState::Ready(_) => "Pending(ready)",
            PendingState::Owner(_) | PendingState::OwnerUntil(_) => "Pending(owner)",
            PendingState::Waiting(_) => "Pending(waiting)",
        })
    }
}
