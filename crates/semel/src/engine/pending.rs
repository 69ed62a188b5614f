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

use super::{EngineState, watches::PollerStopped};
use crate::{
    Deadline, Lease,
    flights::FlightResult,
    limiter::Permit,
    observer::EventKind,
    retained_reply::{RetainedReply, retention_left},
};

/// The future of a reply, from [`Semel::begin`](crate::Semel::begin). Dropping it does not affect
/// the operation.
#[must_use]
pub struct Pending<T>(PendingState<T>);

enum PendingState<T> {
    Ready(Option<RetainedReply>),
    Owner(OwnerWait<T>),
    Waiting(Pin<Box<dyn Future<Output = RetainedReply> + Send>>),
}

/// A request whose own driver replies.
struct OwnerWait<T> {
    reply_rx: oneshot::Receiver<DriverMessage<T>>,
    lease: Lease,
    deadline: Option<Box<DeadlineWait>>,
}

/// The end of the time that the client waits.
struct DeadlineWait {
    passed: Pin<Box<dyn Future<Output = ()> + Send>>,
    shared: Arc<EngineState>,
}

/// The reply to a request that began an operation.
#[derive(Debug)]
pub enum OperationReply<T> {
    /// The reply.
    Replied {
        /// The reply.
        reply: Reply,
        /// The execution of this request, if it had one.
        own: Option<OwnExecution<T>>,
        /// How long the record with this reply is kept, at least; `None` if the reply is not
        /// recorded.
        expires_in: Option<Duration>,
    },
    /// The operation handed out its value and runs on.
    Early {
        /// The value.
        value: T,
        /// The lease of the operation.
        lease: Lease,
        /// The reply that follows.
        recorded: RecordedReply,
    },
}

/// The execution that a request began.
#[derive(Debug)]
pub struct OwnExecution<T> {
    /// Its lease.
    pub lease: Lease,
    /// Its value; `None` while it runs, after a panic, and if it returned none.
    pub value: Option<T>,
}

/// The future of the reply that follows a value that was handed out early. The deadline of the
/// client does not end it, because an answer is being sent already.
#[derive(Debug)]
#[must_use]
pub struct RecordedReply(oneshot::Receiver<Reply>);

/// A message of the driver to the request that began the operation.
#[derive(Debug)]
pub(crate) enum DriverMessage<T> {
    Reply(RetainedReply, Option<T>),
    Early(T, oneshot::Receiver<Reply>),
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

impl<T> Pending<T> {
    pub(crate) fn ready(reply: impl Into<RetainedReply>) -> Self {
        Self(PendingState::Ready(Some(reply.into())))
    }

    pub(crate) fn owner(
        reply_rx: oneshot::Receiver<DriverMessage<T>>,
        shared: &Arc<EngineState>,
        lease: Lease,
    ) -> Self {
        let wait = |deadline: Deadline| {
            let (passed, shared) = (Box::pin(deadline.wait()), Arc::clone(shared));
            Box::new(DeadlineWait { passed, shared })
        };
        let deadline = lease.deadline().map(wait);
        Self(PendingState::Owner(OwnerWait { reply_rx, lease, deadline }))
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

    /// Waits for the reply alone, without the value of the operation.
    pub async fn reply(self) -> Reply {
        match self.await {
            OperationReply::Replied { reply, .. } => reply,
            OperationReply::Early { recorded, .. } => recorded.await,
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = OperationReply<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<OperationReply<T>> {
        loop {
            let reply = match &mut self.0 {
                PendingState::Ready(reply) => {
                    let reply = reply.take().unwrap_or_else(|| DRIVER_DROPPED.into());
                    OperationReply::of(reply, None)
                }
                PendingState::Waiting(waiting) => {
                    OperationReply::of(ready!(waiting.as_mut().poll(context)), None)
                }
                PendingState::Owner(owner) => match ready!(owner.poll_message(context)) {
                    DriverMessage::Reply(reply, value) => {
                        OperationReply::of(reply, owner.execution(value))
                    }
                    DriverMessage::Early(value, recorded) => {
                        let (lease, recorded) = (owner.lease.clone(), RecordedReply(recorded));
                        OperationReply::Early { value, lease, recorded }
                    }
                    DriverMessage::WaitRemotely(elsewhere) => {
                        self.0 = PendingState::Waiting(Box::pin(elsewhere.watch()));
                        continue;
                    }
                },
            };
            self.0 = PendingState::Ready(None);
            return Poll::Ready(reply);
        }
    }
}

impl<T> OperationReply<T> {
    fn of(retained: RetainedReply, own: Option<OwnExecution<T>>) -> Self {
        let RetainedReply { reply, expires_in } = retained;
        Self::Replied { reply, own, expires_in }
    }
}

impl<T> OwnerWait<T> {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<DriverMessage<T>> {
        if let Poll::Ready(message) = Pin::new(&mut self.reply_rx).poll(context) {
            let dropped = |_| DriverMessage::Reply(DRIVER_DROPPED.into(), None);
            return Poll::Ready(message.unwrap_or_else(dropped));
        }
        let Some(deadline) = &mut self.deadline else { return Poll::Pending };
        ready!(deadline.passed.as_mut().poll(context));
        let shared = Arc::clone(&deadline.shared);
        self.deadline = None;
        if !self.lease.reports_reply() {
            // The driver sends its reply at this moment.
            return Poll::Pending;
        }
        let refusal = shared.refuse(self.lease.id(), Problem::DeadlineExceededInFlight);
        Poll::Ready(DriverMessage::Reply(refusal.into(), None))
    }

    fn execution(&self, value: Option<T>) -> Option<OwnExecution<T>> {
        let lease = self.lease.has_begun().then(|| self.lease.clone())?;
        Some(OwnExecution { lease, value })
    }
}

impl Future for RecordedReply {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        Pin::new(&mut self.0).poll(context).map(|reply| reply.unwrap_or(DRIVER_DROPPED))
    }
}

/// The reply when the driver task was dropped because its runtime shut down.
const DRIVER_DROPPED: Reply = Reply::Problem(Problem::OutcomeUnrecorded);

/// Waits for an execution in this process.
async fn join(
    shared: Arc<EngineState>,
    id: RecordId,
    mut flow: Flow,
    mut result: oneshot::Receiver<FlightResult>,
    permit: Permit,
) -> RetainedReply {
    let since = shared.stopwatch();
    let mut expires_in = None;
    let step = tokio::select! {
        biased;
        result = &mut result => match result {
            Ok(FlightResult::Reply(retained)) => {
                expires_in = retained.expires_in;
                flow.on_joined(retained.reply)
            }
            Ok(FlightResult::Elsewhere) => flow.on_elsewhere(shared.clock.now()),
            Err(_) => flow.on_joined(DRIVER_DROPPED),
        },
        () = shared.clock.sleep_until(flow.next_tick()) => flow.on_tick(shared.clock.now()),
    };
    if let Action::Reply(reply) = step {
        shared.emit_waited(&id, &reply, since);
        return RetainedReply::new(reply, expires_in);
    }
    RemoteWait { shared, id, flow, permit, since }.watch().await
}

impl RemoteWait {
    pub(crate) async fn watch(self) -> RetainedReply {
        let Self { shared, id, mut flow, permit, since } = self;
        shared.events.emit(&id, EventKind::Waiting);
        let mut waiter = shared.watches.wait(&shared, &id);
        let mut expires_in = None;
        let reply = loop {
            let step = tokio::select! {
                biased;
                seen = waiter.seen() => match seen {
                    Ok(seen) => {
                        expires_in = seen.as_deref().and_then(retention_left);
                        flow.on_seen(seen.as_deref(), shared.clock.now())
                    }
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
        RetainedReply::new(reply, expires_in)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            PendingState::Ready(_) => "Pending(ready)",
            PendingState::Owner(_) => "Pending(owner)",
            PendingState::Waiting(_) => "Pending(waiting)",
        })
    }
}
