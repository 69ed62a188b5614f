//! The thread that runs all tasks of a store.

use std::{
    sync::Arc,
    thread::{Builder, JoinHandle},
    time::Duration,
};

use semel_core::{StoreError, StoreErrorKind};
use tokio::{
    runtime,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, interval},
};

use crate::{
    background::{self, BackgroundTask},
    batch_writer::BatchWriter,
    direct::DirectConnections,
    error::closed,
    listener::NotificationListener,
    meta, migrate,
    options::Options,
    session::{Session, SessionConnector},
    shared::SharedState,
};

/// How long commands wait for an unreachable database before they fail.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the watchdog looks for stalled commands.
const WATCHDOG_INTERVAL: Duration = Duration::from_millis(100);

/// How many background tasks may wait.
const TASKS_MAX: usize = 64;

/// The thread of a store. Dropping it serves what is queued, then ends the thread.
pub(crate) struct StoreThread {
    pub(crate) shared: Arc<SharedState>,
    pub(crate) direct: Arc<DirectConnections>,
    pub(crate) listener: Arc<NotificationListener>,
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
        let (shared, listener, tasks) = opened.await.map_err(|_| closed())??;
        let direct = Arc::new(DirectConnections::new(Arc::clone(&shared)));
        Ok(Self { shared, direct, listener, tasks: Some(tasks), thread: Some(thread) })
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

/// What the tasks of a store share with its handle.
type StartedStore = (Arc<SharedState>, Arc<NotificationListener>, mpsc::Sender<BackgroundTask>);

type Ready = oneshot::Sender<Result<StartedStore, StoreError>>;

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
    let watched = Arc::clone(&shared);
    tokio::spawn(async move { watchdog(&watched).await });
    let listener = Arc::new(NotificationListener::default());
    let (listening, state) = (Arc::clone(&listener), Arc::clone(&shared));
    tokio::spawn(async move { listening.run(&state).await });
    // If the opener was dropped, nothing else would close the store.
    if ready.send(Ok((Arc::clone(&shared), Arc::clone(&listener), tasks))).is_err() {
        shared.queue.close();
    }
    while writers.join_next().await.is_some() {}
    let _ = background.await;
    shared.queue.reject_all(closed);
    listener.close();
}

async fn open(connector: Arc<SessionConnector>) -> Result<(Arc<SharedState>, Session), StoreError> {
    let options = &connector.options;
    let session = connector.open_first().await?;
    // A migration has no timeout, but reading the current version has.
    connector.with_timeout(meta::read(&session.client, &options.names)).await?;
    let meta = migrate::ensure(&session, options).await?;
    connector.record_timeline(&session, &meta).await?;
    let store = meta.store;
    let _ = connector.store.set(store);
    Ok((Arc::new(SharedState::new(Arc::clone(&connector))), session))
}

/// Wakes idle writers when the busy ones are stuck, and fails waiting commands when no writer
/// has had a connection for a while.
async fn watchdog(shared: &SharedState) {
    let (mut rounds, mut taken, mut unreachable_since) = (interval(WATCHDOG_INTERVAL), 0, None);
    loop {
        rounds.tick().await;
        taken = shared.queue.wake_if_stalled(taken);
        if shared.is_connected() {
            unreachable_since = None;
        } else if unreachable_since.get_or_insert_with(Instant::now).elapsed() > UNREACHABLE_TIMEOUT
        {
            shared.queue.reject_all(|| shared.unavailable());
        }
    }
}
