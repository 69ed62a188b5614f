//! The state that all tasks of a store share, and the thread that runs them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use semel_core::{StoreError, StoreErrorKind, StoreId};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{
    background::{self, BackgroundTask},
    batch_writer::BatchWriter,
    command_queue::CommandQueue,
    direct::DirectConnections,
    error::closed,
    listener::NotificationListener,
    migrate,
    options::Options,
    presence::store_id,
    session::{Session, SessionConnector},
    timeline::Timeline,
};

/// How long commands wait for an unreachable database before they fail.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the watchdog looks for stalled commands.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);

/// How many background tasks may wait.
const TASKS_MAX: usize = 64;

pub(crate) struct SharedState {
    pub(crate) connector: Arc<SessionConnector>,
    pub(crate) queue: CommandQueue,
    pub(crate) direct: DirectConnections,
    pub(crate) listener: NotificationListener,
    /// How often the database turned out to be another one. Connections from before are not used.
    replacements: AtomicU64,
    connections: AtomicUsize,
    last_error: Mutex<String>,
}

impl SharedState {
    /// Opens a connection to the same store.
    pub(crate) async fn open(
        &self,
        on_notification: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let replacements = self.replacements.load(Ordering::Acquire);
        let mut session = self.connector.open(on_notification).await?;
        session.replacements = replacements;
        Ok(session)
    }

    /// Whether a connection can still be used.
    pub(crate) fn is_usable(&self, session: &Session) -> bool {
        !session.client.is_closed()
            && session.replacements == self.replacements.load(Ordering::Acquire)
            && session.timeline_changes == self.connector.history.changes()
    }

    /// Checks which store a connection leads to. A pooler keeps its clients when the database
    /// behind it is replaced or restored, so the connection stays open.
    pub(crate) fn verify_identity(&self, store: &str) -> Result<(), StoreError> {
        if self.connector.store.get().is_some_and(|ours| ours == store) {
            return Ok(());
        }
        self.replacements.fetch_add(1, Ordering::AcqRel);
        Err(self.connector.replaced())
    }

    /// Checks the timeline of the server behind a pooler, for the same reason.
    pub(crate) fn verify_timeline(
        &self,
        session: &Session,
        found: Timeline,
    ) -> Result<(), StoreError> {
        let admitted = self.connector.history.admit(Some(found), &session.host);
        if admitted.is_err() {
            self.replacements.fetch_add(1, Ordering::AcqRel);
        }
        admitted.map(|_| ())
    }

    /// The identity of this store, for a cache that several stores share.
    pub(crate) fn identity(&self) -> Option<StoreId> {
        store_id(self.connector.store.get()?)
    }

    /// Counts a writer's new connection.
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.last_error().clear();
    }

    /// Counts a writer's lost connection.
    pub(crate) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Keeps the reason why there is no connection, for commands that fail.
    pub(crate) fn set_last_error(&self, error: &StoreError) {
        *self.last_error() = error.to_string();
    }

    fn unavailable(&self) -> StoreError {
        let mut last_error = self.last_error().clone();
        if last_error.is_empty() {
            "there is no connection to the database".clone_into(&mut last_error);
        }
        StoreError::new(StoreErrorKind::Unavailable, last_error)
    }

    fn last_error(&self) -> MutexGuard<'_, String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes idle writers when the busy ones are stuck, and fails waiting commands when no writer
    /// has had a connection for a while.
    async fn watchdog(&self) {
        let (mut rounds, mut taken, mut unreachable_since) = (interval(WATCHDOG_INTERVAL), 0, None);
        loop {
            rounds.tick().await;
            taken = self.queue.wake_if_stalled(taken);
            if self.connections.load(Ordering::Relaxed) > 0 {
                unreachable_since = None;
            } else if unreachable_since.get_or_insert_with(Instant::now).elapsed()
                > UNREACHABLE_TIMEOUT
            {
                self.queue.reject_all(|| self.unavailable());
            }
        }
    }
}

/// The thread of a store. Dropping it serves what is queued, then ends the thread.
pub(crate) struct StoreThread {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) tasks: Option<mpsc::Sender<BackgroundTask>>,
    thread: Option<JoinHandle<()>>,
}

impl StoreThread {
    /// Opens the store on a thread of its own.
    pub(crate) async fn spawn(options: Options) -> Result<Self, StoreError> {
        let connector = Arc::new(SessionConnector::new(options)?);
        let (ready, opened) = oneshot::channel();
        let thread = Builder::new().name("semel-postgres".to_owned()).spawn(move || {
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(run(connector, ready)),
                Err(error) => {
                    let message = "the store's runtime cannot be started";
                    let error =
                        StoreError::new(StoreErrorKind::Unavailable, message).because(error);
                    let _ = ready.send(Err(error));
                }
            }
        });
        let thread = thread.map_err(|error| {
            let message = "the store's thread cannot be started";
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        })?;
        let (shared, tasks) = opened.await.map_err(|_| closed())??;
        Ok(Self { shared, tasks: Some(tasks), thread: Some(thread) })
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        self.shared.queue.close();
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Ready = oneshot::Sender<Result<(Arc<SharedState>, mpsc::Sender<BackgroundTask>), StoreError>>;

async fn run(connector: Arc<SessionConnector>, ready: Ready) {
    let (shared, first) = match open(connector).await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let (tasks, waiting) = mpsc::channel(TASKS_MAX);
    let mut writers = JoinSet::new();
    let mut first = Some(first);
    for number in 0..shared.connector.options.connections {
        writers.spawn(BatchWriter::new(number, Arc::clone(&shared), first.take()).run());
    }
    let background = tokio::spawn(background::run(Arc::clone(&shared), waiting));
    let watchdog = Arc::clone(&shared);
    tokio::spawn(async move { watchdog.watchdog().await });
    let listener = Arc::clone(&shared);
    tokio::spawn(async move { listener.listener.run(&listener).await });
    // If the opener was dropped, nothing else would close the store.
    if ready.send(Ok((Arc::clone(&shared), tasks))).is_err() {
        shared.queue.close();
    }
    while writers.join_next().await.is_some() {}
    let _ = background.await;
    shared.queue.reject_all(closed);
    shared.listener.close();
}

async fn open(connector: Arc<SessionConnector>) -> Result<(Arc<SharedState>, Session), StoreError> {
    let options = &connector.options;
    let session = connector.open_first().await?;
    // A migration has no timeout, but reading the current version has.
    connector.with_timeout(migrate::meta(&session, &options.names)).await?;
    let meta = migrate::ensure(&session, options).await?;
    connector.record_timeline(&session, &meta).await?;
    let store = meta.store;
    let _ = connector.store.set(store);
    let queue = CommandQueue::new(options.connections, options.waiting_max);
    let shared = SharedState {
        listener: NotificationListener::default(),
        queue,
        direct: DirectConnections::default(),
        replacements: AtomicU64::new(0),
        connections: AtomicUsize::new(0),
        last_error: Mutex::default(),
        connector: Arc::clone(&connector),
    };
    Ok((Arc::new(shared), session))
}
