//! Waits for records that another process runs.
//!
//! One task polls a record, however many requests wait for it: soon at first, then when the store
//! reports a change, or four times a second if the store has no notifications. A waiter holds
//! neither a thread nor a connection, only a receiver.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{RecordId, Snapshot, StateView};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{EngineState, with_store_timeout};
use crate::observer::StoreOperation;

const POLL_INTERVAL_MIN: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(250);

/// How long a store with change notifications is trusted without polling: a notification may be
/// lost, and the expiry of a lease sends none.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

/// The timeout of one poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// The record as seen by poll number `round` of its watch.
#[derive(Clone, Debug, Default)]
struct Update {
    round: u64,
    seen: Option<Arc<Snapshot>>,
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<HashMap<RecordId, RecordWatch>>,
}

#[derive(Clone, Debug)]
struct RecordWatch {
    updates: watch::Sender<Update>,
    /// The number of the current or last poll.
    round: Arc<AtomicU64>,
}

/// Waits for changes of one record.
#[derive(Debug)]
pub(crate) struct RecordWaiter {
    updates: watch::Receiver<Update>,
    /// Polls that started before this waiter may show the state before its own claim.
    after: u64,
}

impl RecordWaiter {
    /// The next state that is relevant; an error if the poller was dropped with its runtime.
    pub(crate) async fn seen(&mut self) -> Result<Option<Arc<Snapshot>>, PollerStopped> {
        loop {
            self.updates.changed().await.map_err(|_| PollerStopped)?;
            let update = self.updates.borrow_and_update();
            if update.round > self.after {
                return Ok(update.seen.clone());
            }
        }
    }
}

/// The poller was dropped.
#[derive(Debug)]
pub(crate) struct PollerStopped;

impl Watches {
    /// Waits for a record; the first waiter starts the poller.
    pub(crate) fn wait(&self, shared: &Arc<EngineState>, id: &RecordId) -> RecordWaiter {
        let mut table = self.lock();
        if let Some(watch) = table.get(id) {
            let after = watch.round.load(Ordering::Acquire);
            return RecordWaiter { updates: watch.updates.subscribe(), after };
        }
        let watch = RecordWatch { updates: watch::Sender::default(), round: Arc::default() };
        let waiter = RecordWaiter { updates: watch.updates.subscribe(), after: 0 };
        table.insert(id.clone(), watch.clone());
        drop(table);
        let poller = Poller { shared: Arc::downgrade(shared), id: id.clone(), watch };
        tokio::spawn(poller.run());
        waiter
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, RecordWatch>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that polls one record.
struct Poller {
    shared: Weak<EngineState>,
    id: RecordId,
    watch: RecordWatch,
}

impl Poller {
    async fn run(self) {
        let mut interval = POLL_INTERVAL_MIN;
        let mut changed = None;
        loop {
            match &mut changed {
                Some(notified) => {
                    if timeout(RECHECK_AFTER, notified).await.is_ok() {
                        changed = None;
                    }
                }
                None => {
                    sleep(interval).await;
                    interval = interval.saturating_mul(2).min(POLL_INTERVAL_MAX);
                }
            }
            let Some(shared) = self.shared.upgrade() else { return };
            if self.remove_if_unused(&shared) {
                return;
            }
            if changed.is_none() {
                changed = with_store_timeout(POLL_TIMEOUT, shared.store.watch(&self.id))
                    .await
                    .unwrap_or_default();
            }
            let round = self.watch.round.fetch_add(1, Ordering::AcqRel) + 1;
            let call = shared.store.get(&self.id);
            // A failed poll sends nothing; the next one may succeed. Nor does a record that still
            // runs: thousands of waiters need not wake up for that.
            if let Ok(seen) =
                shared.call_store(StoreOperation::Get, &self.id, POLL_TIMEOUT, call).await
                && !seen.as_ref().is_some_and(runs)
            {
                let seen = seen.map(Arc::new);
                self.watch.updates.send_replace(Update { round, seen });
            }
        }
    }

    /// Under the lock, so that no request waits for a watch that has ended.
    fn remove_if_unused(&self, shared: &EngineState) -> bool {
        let mut table = shared.watches.lock();
        let unused = self.watch.updates.receiver_count() == 0;
        if unused {
            table.remove(&self.id);
        }
        unused
    }
}

fn runs(seen: &Snapshot) -> bool {
    matches!(seen.state, StateView::InFlight { lease_left } if !lease_left.is_zero())
}

impl Drop for Poller {
    /// The runtime shut down: waiters on another runtime start a new poller.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut table = shared.watches.lock();
            let ours = |watch: &RecordWatch| Arc::ptr_eq(&watch.round, &self.watch.round);
            if table.get(&self.id).is_some_and(ours) {
                table.remove(&self.id);
            }
        }
    }
}
