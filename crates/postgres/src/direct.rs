//! Direct connections: while the queue is idle, a command is sent on a connection that lives on the
//! runtime of its caller.
//!
//! Through the queue, a command wakes the store's thread and is woken by it. Without other commands
//! to share these two thread switches, they take a large part of the time of the statement itself.
//!
//! A runtime gets its connection after its first command. The connection ends with the runtime.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use semel_core::StoreError;
use tokio::{
    runtime::{Handle, Id},
    time::{Instant, sleep},
};
use tracing::debug;

use crate::{
    batch_writer::{send_or_requeue, send_single},
    command::{CommandReply, QueuedCommand, StatementStage},
    digest::Digest,
    session::Session,
    shared::SharedState,
    single::SingleCommand,
};

/// The delay before a connection that failed is opened again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Shorter than the timeout of any command.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);

/// The direct connections, at most one for each runtime.
pub(crate) struct DirectConnections {
    shared: Arc<SharedState>,
    all: Mutex<Vec<DirectConnection>>,
}

struct DirectConnection {
    runtime: Id,
    state: DirectState,
    #[expect(dead_code, reason = "the timer task of the runtime ends when this is dropped")]
    alive: Arc<()>,
}

enum DirectState {
    Idle(Box<Session>),
    /// A command uses it, or it is being opened.
    InUse,
    /// It could not be opened, or turned out to be unusable.
    Failed(Instant),
}

impl DirectState {
    fn after(session: Box<Session>, is_usable: bool) -> Self {
        if is_usable { Self::Idle(session) } else { Self::Failed(Instant::now()) }
    }
}

impl DirectConnections {
    pub(crate) fn new(shared: Arc<SharedState>) -> Self {
        Self { shared, all: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<DirectConnection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the connection of the current runtime, if it is idle. If there is none and the limit
    /// is not reached, opens one for the next command.
    fn take(self: &Arc<Self>) -> Option<(DirectGuard, Box<Session>)> {
        let runtime = Handle::try_current().ok()?;
        let id = runtime.id();
        let guard = || DirectGuard { connections: Arc::clone(self), runtime: id, after: None };
        let shared = &self.shared;
        let mut all = self.lock();
        if let Some(direct) = all.iter_mut().find(|direct| direct.runtime == id) {
            match mem::replace(&mut direct.state, DirectState::InUse) {
                DirectState::Idle(session) if shared.is_usable(&session) => {
                    return Some((guard(), session));
                }
                DirectState::Failed(since) if since.elapsed() < RETRY_DELAY => {
                    direct.state = DirectState::Failed(since);
                    return None;
                }
                DirectState::InUse => return None,
                DirectState::Idle(_) | DirectState::Failed(_) => {}
            }
        } else {
            all.retain(|direct| direct.is_current(shared));
            if all.len() >= shared.connector.options.connections {
                return None;
            }
            let alive = Arc::new(());
            runtime.spawn(keep_timer_pending(Arc::downgrade(&alive)));
            all.push(DirectConnection { runtime: id, state: DirectState::InUse, alive });
        }
        drop(all);
        runtime.spawn(open_connection(guard()));
        None
    }

    /// Sends a single command directly, or returns the stage at which the queue has to continue.
    pub(crate) async fn try_single(
        self: &Arc<Self>,
        digest: Digest,
        command: SingleCommand<'_>,
    ) -> Result<Result<CommandReply, StoreError>, StatementStage> {
        if !self.shared.queue.is_idle() {
            return Err(StatementStage::Single);
        }
        let Some((mut guard, session)) = self.take() else {
            return Err(StatementStage::Single);
        };
        let (reply, is_usable) = send_single(&session, digest, command).await;
        guard.after = Some(DirectState::after(session, is_usable));
        reply.ok_or(StatementStage::First)
    }

    /// Sends a command directly, or gives it back.
    pub(crate) async fn try_send(
        self: &Arc<Self>,
        command: QueuedCommand,
    ) -> Result<(), QueuedCommand> {
        if !self.shared.queue.is_idle() {
            return Err(command);
        }
        let Some((mut guard, session)) = self.take() else { return Err(command) };
        let is_usable = send_or_requeue(&self.shared, &session, vec![command]).await;
        guard.after = Some(DirectState::after(session, is_usable));
        Ok(())
    }
}

impl DirectConnection {
    /// Whether it keeps its place. A runtime that still exists opens another one later.
    fn is_current(&self, shared: &SharedState) -> bool {
        match &self.state {
            DirectState::Idle(session) => shared.is_usable(session),
            DirectState::InUse => true,
            DirectState::Failed(since) => since.elapsed() < RETRY_DELAY,
        }
    }
}

/// Puts a connection back when dropped. Dropped without a state, because the runtime ended or the
/// caller gave up, it removes the connection.
struct DirectGuard {
    connections: Arc<DirectConnections>,
    runtime: Id,
    after: Option<DirectState>,
}

impl Drop for DirectGuard {
    fn drop(&mut self) {
        let mut all = self.connections.lock();
        match self.after.take() {
            Some(state) => {
                if let Some(direct) = all.iter_mut().find(|direct| direct.runtime == self.runtime) {
                    direct.state = state;
                }
            }
            None => all.retain(|direct| direct.runtime != self.runtime),
        }
    }
}

async fn open_connection(mut guard: DirectGuard) {
    guard.after = Some(match guard.connections.shared.open(|_| {}).await {
        Ok(session) => DirectState::Idle(Box::new(session)),
        Err(error) => {
            debug!(%error, "cannot connect to the database");
            DirectState::Failed(Instant::now())
        }
    });
}

/// Keeps a timer pending on a runtime that has a direct connection. Every command sets a timeout,
/// and the first timer of a runtime without any wakes the thread that has slept longest.
async fn keep_timer_pending(connection: Weak<()>) {
    while connection.strong_count() > 0 {
        sleep(TIMER_INTERVAL).await;
    }
}
