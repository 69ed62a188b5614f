//! Watches of records, and the connection on which changes are notified.
//!
//! The connection is opened for the first watch. While it is down, no watch can be placed, and
//! callers have to poll.

use std::{
    collections::HashMap,
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use semel_core::Changed;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::{sleep, timeout},
};
use tracing::debug;

use crate::{digest::Digest, error::store_error, session::Session, shared::SharedState};

/// How long the first watch waits for the connection.
const FIRST_LISTEN_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the connection is checked.
const LIVENESS_INTERVAL: Duration = Duration::from_millis(200);

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How many watches there may be; further callers poll.
const WATCHES_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct NotificationListener {
    watches: Arc<Mutex<WatchRegistry>>,
    is_started: AtomicBool,
    start: Notify,
    state: watch::Sender<ListenState>,
}

/// Whether notifications arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListenState {
    /// No record has been watched so far.
    #[default]
    NotStarted,
    Listening,
    Disconnected,
}

#[derive(Debug, Default)]
struct WatchRegistry {
    next: u64,
    by_digest: HashMap<Digest, HashMap<u64, oneshot::Sender<()>>>,
    count: usize,
}

impl WatchRegistry {
    fn notify(&mut self, digest: Digest) {
        let watches = self.by_digest.remove(&digest).unwrap_or_default();
        self.count -= watches.len();
        for sender in watches.into_values() {
            let _ = sender.send(());
        }
    }

    fn remove(&mut self, digest: Digest, number: u64) {
        let Some(watches) = self.by_digest.get_mut(&digest) else { return };
        self.count -= usize::from(watches.remove(&number).is_some());
        if watches.is_empty() {
            self.by_digest.remove(&digest);
        }
    }
}

/// A registered watch, removed when this is dropped.
struct WatchGuard {
    watches: Arc<Mutex<WatchRegistry>>,
    digest: Digest,
    number: u64,
    notified: oneshot::Receiver<()>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        lock(&self.watches).remove(self.digest, self.number);
    }
}

fn lock(watches: &Mutex<WatchRegistry>) -> MutexGuard<'_, WatchRegistry> {
    watches.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NotificationListener {
    /// Returns a future that ends when a change of the record is notified; `None` if notifications
    /// do not arrive now.
    pub(crate) async fn watch_record(&self, digest: Digest) -> Option<Changed> {
        if !self.is_started.swap(true, Ordering::AcqRel) {
            self.start.notify_one();
        }
        let mut state = self.state.subscribe();
        let started = state.wait_for(|state| *state != ListenState::NotStarted);
        let started = timeout(FIRST_LISTEN_TIMEOUT, started).await;
        if !matches!(started, Ok(Ok(state)) if *state == ListenState::Listening) {
            return None;
        }
        let mut watches = lock(&self.watches);
        // Checked under the lock, because `close` ends all watches under it.
        if *self.state.borrow() != ListenState::Listening || watches.count >= WATCHES_MAX {
            return None;
        }
        let (sender, notified) = oneshot::channel();
        let number = watches.next;
        watches.next += 1;
        watches.count += 1;
        watches.by_digest.entry(digest).or_default().insert(number, sender);
        drop(watches);
        let mut guard = WatchGuard { watches: Arc::clone(&self.watches), digest, number, notified };
        Some(Box::pin(async move {
            let _ = (&mut guard.notified).await;
        }))
    }

    /// Keeps a listening connection open, from the first watch on.
    pub(crate) async fn run(&self, shared: &SharedState) {
        self.start.notified().await;
        let mut backoff = BACKOFF_MIN;
        loop {
            if let Some(session) = self.listen(shared).await {
                backoff = BACKOFF_MIN;
                self.state.send_replace(ListenState::Listening);
                while shared.is_usable(&session) {
                    sleep(LIVENESS_INTERVAL).await;
                }
            }
            self.close();
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn listen(&self, shared: &SharedState) -> Option<Session> {
        let watches = Arc::clone(&self.watches);
        let on_notification = move |payload: &str| {
            if let Some(digest) = Digest::parse(payload) {
                lock(&watches).notify(digest);
            }
        };
        let session = match shared.open(on_notification).await {
            Ok(session) => session,
            Err(error) => {
                debug!(%error, "cannot listen to the database");
                return None;
            }
        };
        if !session.dedicated {
            // A pooler in transaction mode passes no notifications on.
            self.close();
            drop(session);
            return pending().await;
        }
        let listen = format!("LISTEN {}", shared.connector.options.names.channel());
        let listening = async { session.execute(&listen).await.map_err(store_error) };
        shared.connector.with_timeout(listening).await.ok().map(|_| session)
    }

    /// Ends all watches: no more notifications arrive, and callers have to poll.
    pub(crate) fn close(&self) {
        let mut watches = lock(&self.watches);
        self.state.send_replace(ListenState::Disconnected);
        watches.by_digest.clear();
        watches.count = 0;
    }
}
