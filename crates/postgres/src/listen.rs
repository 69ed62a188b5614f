//! Who waits for which record, and the connection on which changes are told.
//!
//! The connection is opened when somebody waits for the first time. While it is away, nobody is
//! told anything, and whoever asks is told that: looking again and again is the way then.

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

use crate::{digest::Digest, error::store_error, house::House, session::Session};

/// How long the first who waits does so for the listening connection.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether the connection is still there.
const ROUND: Duration = Duration::from_millis(200);

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How many may wait; the others look for themselves.
const WAITERS_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Listener {
    waiters: Arc<Mutex<Waiters>>,
    wanted: AtomicBool,
    rung: Notify,
    state: watch::Sender<State>,
}

/// Whether changes are heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nobody has asked so far.
    #[default]
    NotYet,
    Listening,
    Away,
}

#[derive(Debug, Default)]
struct Waiters {
    next: u64,
    by_digest: HashMap<Digest, HashMap<u64, oneshot::Sender<()>>>,
    count: usize,
}

impl Waiters {
    fn tell(&mut self, digest: Digest) {
        let told = self.by_digest.remove(&digest).unwrap_or_default();
        self.count -= told.len();
        for waiter in told.into_values() {
            let _ = waiter.send(());
        }
    }

    fn leave(&mut self, digest: Digest, number: u64) {
        let Some(waiting) = self.by_digest.get_mut(&digest) else { return };
        self.count -= usize::from(waiting.remove(&number).is_some());
        if waiting.is_empty() {
            self.by_digest.remove(&digest);
        }
    }
}

/// A place among those who wait; it is given up when dropped.
struct Place {
    waiters: Arc<Mutex<Waiters>>,
    digest: Digest,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.waiters).leave(self.digest, self.number);
    }
}

fn lock(waiters: &Mutex<Waiters>) -> MutexGuard<'_, Waiters> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// A future that ends when the record is told to have changed; `None` if that is not told now.
    pub(crate) async fn wait_for(&self, digest: Digest) -> Option<Changed> {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.rung.notify_one();
        }
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| *state != State::NotYet);
        let settled = timeout(PATIENCE, settled).await;
        if !matches!(settled, Ok(Ok(state)) if *state == State::Listening) {
            return None;
        }
        let mut waiters = lock(&self.waiters);
        // Under the lock: whoever goes away takes all waiters with it.
        if *self.state.borrow() != State::Listening || waiters.count >= WAITERS_MAX {
            return None;
        }
        let (sender, told) = oneshot::channel();
        let number = waiters.next;
        waiters.next += 1;
        waiters.count += 1;
        waiters.by_digest.entry(digest).or_default().insert(number, sender);
        drop(waiters);
        let mut place = Place { waiters: Arc::clone(&self.waiters), digest, number, told };
        Some(Box::pin(async move {
            let _ = (&mut place.told).await;
        }))
    }

    /// Keeps a listening connection from the moment somebody wants it.
    pub(crate) async fn run(&self, house: &House) {
        self.rung.notified().await;
        let mut pause = PAUSE_MIN;
        loop {
            if let Some(session) = self.listen(house).await {
                pause = PAUSE_MIN;
                self.state.send_replace(State::Listening);
                while house.trusts(&session) {
                    sleep(ROUND).await;
                }
            }
            self.close();
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn listen(&self, house: &House) -> Option<Session> {
        let waiters = Arc::clone(&self.waiters);
        let hear = move |payload: &str| {
            if let Some(digest) = Digest::parse(payload) {
                lock(&waiters).tell(digest);
            }
        };
        let session = match house.open(hear).await {
            Ok(session) => session,
            Err(error) => {
                debug!(%error, "cannot listen to the database");
                return None;
            }
        };
        if !session.named {
            // Through a pooler nothing is heard, now or later.
            self.close();
            drop(session);
            return pending().await;
        }
        let listen = format!("LISTEN {}", house.connector.options.names.channel());
        let asked = async { session.run(&listen).await.map_err(store_error) };
        house.connector.in_time(asked).await.ok().map(|_| session)
    }

    /// Nothing more is heard: all who wait have to look for themselves.
    pub(crate) fn close(&self) {
        let mut waiters = lock(&self.waiters);
        self.state.send_replace(State::Away);
        waiters.by_digest.clear();
        waiters.count = 0;
    }
}
