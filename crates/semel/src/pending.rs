//! The reply to come.
//!
//! For the one whose request runs, it comes from the driver, which goes on whether or not anybody
//! waits here. Those who joined or wait elsewhere drive their own machine in here; if they hang up,
//! they are gone, and nobody else notices.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use semel_core::{Flow, Problem, RecordId, Reply, Step};
use tokio::sync::oneshot;

use crate::{
    engine::Shared, flights::Landed, gauge::Permit, observer::EventKind, watches::Abandoned,
};

/// The reply to come, from [`Semel::begin`](crate::Semel::begin). Dropping it changes nothing for
/// the operation.
#[must_use]
pub struct Pending(State);

enum State {
    Ready(Option<Reply>),
    Owner(oneshot::Receiver<Told>),
    Waiting(Pin<Box<dyn Future<Output = Reply> + Send>>),
}

/// What a driver tells the one who began the operation.
#[derive(Debug)]
pub(crate) enum Told {
    Reply(Reply),
    /// Somebody elsewhere runs it: wait for that one.
    Elsewhere(Box<Elsewhere>),
}

/// A request that waits for somebody elsewhere.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: RecordId,
    pub(crate) flow: Flow,
    pub(crate) permit: Permit,
    /// When it began to wait, if somebody listens.
    pub(crate) since: Option<Duration>,
}

impl Pending {
    pub(crate) const fn ready(reply: Reply) -> Self {
        Self(State::Ready(Some(reply)))
    }

    pub(crate) const fn owner(told: oneshot::Receiver<Told>) -> Self {
        Self(State::Owner(told))
    }

    pub(crate) fn joined(
        shared: &Arc<Shared>,
        id: RecordId,
        flow: Flow,
        landed: oneshot::Receiver<Landed>,
        permit: Permit,
    ) -> Self {
        let shared = Arc::clone(shared);
        Self(State::Waiting(Box::pin(join(shared, id, flow, landed, permit))))
    }
}

impl Future for Pending {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        loop {
            let next = match &mut self.0 {
                State::Ready(reply) => {
                    let reply = reply.take();
                    return Poll::Ready(reply.unwrap_or(Reply::Problem(GONE)));
                }
                State::Waiting(waiting) => {
                    State::Ready(Some(ready!(waiting.as_mut().poll(context))))
                }
                State::Owner(told) => match ready!(Pin::new(told).poll(context)) {
                    Ok(Told::Reply(reply)) => State::Ready(Some(reply)),
                    Ok(Told::Elsewhere(elsewhere)) => State::Waiting(Box::pin(elsewhere.watch())),
                    Err(_) => State::Ready(Some(Reply::Problem(GONE))),
                },
            };
            self.0 = next;
        }
    }
}

/// What is said when the driver is gone without a word: its runtime went down.
const GONE: Problem = Problem::OutcomeUnrecorded;

/// Waits for an execution in this process.
async fn join(
    shared: Arc<Shared>,
    id: RecordId,
    mut flow: Flow,
    mut landed: oneshot::Receiver<Landed>,
    permit: Permit,
) -> Reply {
    let since = shared.stopwatch();
    let step = tokio::select! {
        biased;
        landed = &mut landed => match landed {
            Ok(Landed::Reply(reply)) => flow.on_joined(reply),
            Ok(Landed::Elsewhere) => flow.on_elsewhere(shared.clock.now()),
            Err(_) => flow.on_joined(Reply::Problem(GONE)),
        },
        () = shared.clock.sleep_until(flow.alarm()) => flow.on_tick(shared.clock.now()),
    };
    if let Step::Reply(reply) = step {
        shared.tell_waited(&id, &reply, since);
        return reply;
    }
    Elsewhere { shared, id, flow, permit, since }.watch().await
}

impl Elsewhere {
    async fn watch(self) -> Reply {
        let Self { shared, id, mut flow, permit, since } = self;
        shared.listener.tell(&id, EventKind::Waiting);
        let mut waiter = shared.watches.wait(&shared, &id);
        let reply = loop {
            let step = tokio::select! {
                biased;
                seen = waiter.seen() => match seen {
                    Ok(seen) => flow.on_seen(seen.as_deref(), shared.clock.now()),
                    Err(Abandoned) => {
                        waiter = shared.watches.wait(&shared, &id);
                        continue;
                    }
                },
                () = shared.clock.sleep_until(flow.alarm()) => flow.on_tick(shared.clock.now()),
            };
            if let Step::Reply(reply) = step {
                break reply;
            }
        };
        drop(permit);
        shared.tell_waited(&id, &reply, since);
        reply
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Ready(_) => "Pending(ready)",
            State::Owner(_) => "Pending(owner)",
            State::Waiting(_) => "Pending(waiting)",
        })
    }
}
