//! What all tasks of a store share, and the thread on which they live.

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
    doors::Doors,
    error::closed,
    lane::Lane,
    listen::Listener,
    migrate,
    office::{self, Errand},
    options::Options,
    presence::store_id,
    queue::Queue,
    session::{Connector, Session},
    timeline::Timeline,
};

/// How long questions wait for a database that cannot be reached before they are refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often it is looked whether anything is stuck.
const ROUND: Duration = Duration::from_millis(100);

/// How many errands may wait.
const ERRANDS_MAX: usize = 64;

pub(crate) struct House {
    pub(crate) connector: Arc<Connector>,
    pub(crate) queue: Queue,
    pub(crate) doors: Doors,
    pub(crate) listener: Listener,
    /// How often another one was found there: no connection from before is used after that.
    strangers: AtomicU64,
    connections: AtomicUsize,
    trouble: Mutex<String>,
}

impl House {
    /// Opens a connection to the same store as before.
    pub(crate) async fn open(
        &self,
        hear: impl FnMut(&str) + Clone + Send + 'static,
    ) -> Result<Session, StoreError> {
        let strangers = self.strangers.load(Ordering::Acquire);
        let mut session = self.connector.open(hear).await?;
        session.strangers = strangers;
        Ok(session)
    }

    /// Whether a connection can still be used.
    pub(crate) fn trusts(&self, session: &Session) -> bool {
        !session.client.is_closed()
            && session.strangers == self.strangers.load(Ordering::Acquire)
            && session.changes == self.connector.history.changes()
    }

    /// Hears which store a connection leads to. A pooler changes what is behind it and keeps its
    /// clients, so that no connection ends when a database is replaced or restored.
    pub(crate) fn recognise(&self, store: &str) -> Result<(), StoreError> {
        if self.connector.store.get().is_some_and(|ours| ours == store) {
            return Ok(());
        }
        self.strangers.fetch_add(1, Ordering::AcqRel);
        Err(self.connector.replaced())
    }

    /// Checks the timeline that a connection through a pooler leads to, for the same reason.
    pub(crate) fn follow(&self, session: &Session, found: Timeline) -> Result<(), StoreError> {
        let admitted = self.connector.history.admit(Some(found), &session.host);
        if admitted.is_err() {
            self.strangers.fetch_add(1, Ordering::AcqRel);
        }
        admitted.map(|_| ())
    }

    /// Which store this is, for a cache that it shares with others.
    pub(crate) fn identity(&self) -> Option<StoreId> {
        store_id(self.connector.store.get()?)
    }

    /// A lane has got its connection.
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.trouble().clear();
    }

    /// A lane has lost its connection.
    pub(crate) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Why there is no connection, for those who are refused.
    pub(crate) fn note(&self, error: &StoreError) {
        *self.trouble() = error.to_string();
    }

    fn away(&self) -> StoreError {
        let mut trouble = self.trouble().clone();
        if trouble.is_empty() {
            "there is no connection to the database".clone_into(&mut trouble);
        }
        StoreError::new(StoreErrorKind::Unavailable, trouble)
    }

    fn trouble(&self) -> MutexGuard<'_, String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after what waits: nobody waits for long if no lane has a connection, or if all that
    /// have one are stuck.
    async fn look_after(&self) {
        let (mut rounds, mut taken, mut away_since) = (interval(ROUND), 0, None);
        loop {
            rounds.tick().await;
            taken = self.queue.nudge(taken);
            if self.connections.load(Ordering::Relaxed) > 0 {
                away_since = None;
            } else if away_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                self.queue.refuse(|| self.away());
            }
        }
    }
}

/// The thread of a store.
pub(crate) struct Resident {
    pub(crate) house: Arc<House>,
    pub(crate) errands: Option<mpsc::Sender<Errand>>,
    thread: Option<JoinHandle<()>>,
}

impl Resident {
    /// Opens the store on a thread of its own.
    pub(crate) async fn move_in(options: Options) -> Result<Self, StoreError> {
        let connector = Arc::new(Connector::new(options)?);
        let (ready, opened) = oneshot::channel();
        let thread = Builder::new().name("semel-postgres".to_owned()).spawn(move || {
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(live(connector, ready)),
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
        let (house, errands) = opened.await.map_err(|_| closed())??;
        Ok(Self { house, errands: Some(errands), thread: Some(thread) })
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.house.queue.close();
        self.errands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Ready = oneshot::Sender<Result<(Arc<House>, mpsc::Sender<Errand>), StoreError>>;

async fn live(connector: Arc<Connector>, ready: Ready) {
    let (house, first) = match open(connector).await {
        Ok(opened) => opened,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let (errands, waiting) = mpsc::channel(ERRANDS_MAX);
    let mut lanes = JoinSet::new();
    let mut first = Some(first);
    for number in 0..house.connector.options.lanes {
        lanes.spawn(Lane::new(number, Arc::clone(&house), first.take()).run());
    }
    let office = tokio::spawn(office::run(Arc::clone(&house), waiting));
    let keeper = Arc::clone(&house);
    tokio::spawn(async move { keeper.look_after().await });
    let listener = Arc::clone(&house);
    tokio::spawn(async move { listener.listener.run(&listener).await });
    // An opener that has gone away leaves nobody to close the store.
    if ready.send(Ok((Arc::clone(&house), errands))).is_err() {
        house.queue.close();
    }
    while lanes.join_next().await.is_some() {}
    let _ = office.await;
    house.queue.refuse(closed);
    house.listener.close();
}

async fn open(connector: Arc<Connector>) -> Result<(Arc<House>, Session), StoreError> {
    let options = &connector.options;
    let session = connector.open_first().await?;
    // A migration may take its time, but not the look at what is there.
    connector.in_time(migrate::meta(&session, &options.names)).await?;
    let meta = migrate::ensure(&session, options).await?;
    connector.record_timeline(&session, &meta).await?;
    let store = meta.store;
    let _ = connector.store.set(store);
    let queue = Queue::new(options.lanes, options.waiting_max);
    let house = House {
        listener: Listener::default(),
        queue,
        doors: Doors::default(),
        strangers: AtomicU64::new(0),
        connections: AtomicUsize::new(0),
        trouble: Mutex::default(),
        connector: Arc::clone(&connector),
    };
    Ok((Arc::new(house), session))
}
