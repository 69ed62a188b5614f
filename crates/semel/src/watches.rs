//! Records that somebody elsewhere runs, and those who wait for them.
//!
//! However many wait for a record, one task looks at it: soon at first, then when the store says
//! that it changed, or four times a second where the store cannot tell. Who waits holds neither a
//! thread nor a connection, only a place in a list.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{RecordId, Snapshot, Standing};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    engine::{Shared, in_time},
    observer::StoreOperation,
};

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How long a store that tells of changes is believed without looking: what it tells may get lost,
/// and it does not tell when a lease lapses.
const BELIEF: Duration = Duration::from_secs(1);

/// How long one look may take.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// A record as a look that was the `round`th of its watch saw it.
#[derive(Clone, Debug, Default)]
struct Sight {
    round: u64,
    seen: Option<Arc<Snapshot>>,
}

#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<HashMap<RecordId, Watch>>,
}

#[derive(Clone, Debug)]
struct Watch {
    sights: watch::Sender<Sight>,
    /// The round of the look that is under way or was the last.
    round: Arc<AtomicU64>,
}

/// A place among those who wait.
#[derive(Debug)]
pub(crate) struct Waiter {
    sights: watch::Receiver<Sight>,
    /// Looks that began before this one came may show what was before its own claim.
    after: u64,
}

impl Waiter {
    /// What the next look shows that is worth showing; an error if nobody looks any more, because
    /// the runtime of whoever did went down.
    pub(crate) async fn seen(&mut self) -> Result<Option<Arc<Snapshot>>, Abandoned> {
        loop {
            self.sights.changed().await.map_err(|_| Abandoned)?;
            let sight = self.sights.borrow_and_update();
            if sight.round > self.after {
                return Ok(sight.seen.clone());
            }
        }
    }
}

/// Nobody looks any more.
#[derive(Debug)]
pub(crate) struct Abandoned;

impl Watches {
    /// Waits for a record; the first who does so starts the task that looks.
    pub(crate) fn wait(&self, shared: &Arc<Shared>, id: &RecordId) -> Waiter {
        let mut table = self.lock();
        if let Some(watch) = table.get(id) {
            let after = watch.round.load(Ordering::Acquire);
            return Waiter { sights: watch.sights.subscribe(), after };
        }
        let watch = Watch { sights: watch::Sender::default(), round: Arc::default() };
        let waiter = Waiter { sights: watch.sights.subscribe(), after: 0 };
        table.insert(id.clone(), watch.clone());
        drop(table);
        let looker = Looker { shared: Arc::downgrade(shared), id: id.clone(), watch };
        tokio::spawn(looker.run());
        waiter
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Watch>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that looks at one record.
struct Looker {
    shared: Weak<Shared>,
    id: RecordId,
    watch: Watch,
}

impl Looker {
    async fn run(self) {
        let mut pause = PAUSE_MIN;
        let mut changed = None;
        loop {
            match &mut changed {
                Some(told) => {
                    if timeout(BELIEF, told).await.is_ok() {
                        changed = None;
                    }
                }
                None => {
                    sleep(pause).await;
                    pause = pause.saturating_mul(2).min(PAUSE_MAX);
                }
            }
            let Some(shared) = self.shared.upgrade() else { return };
            if self.leave_if_nobody_waits(&shared) {
                return;
            }
            if changed.is_none() {
                changed =
                    in_time(LOOK_TIMEOUT, shared.store.watch(&self.id)).await.unwrap_or_default();
            }
            let round = self.watch.round.fetch_add(1, Ordering::AcqRel) + 1;
            let question = shared.store.get(&self.id);
            // If it fails there is nothing to tell; the next look may do better. Nor is there if it
            // still runs: ten thousand need not wake up for that.
            if let Ok(seen) =
                shared.ask(StoreOperation::Get, &self.id, LOOK_TIMEOUT, question).await
                && !seen.as_ref().is_some_and(runs)
            {
                let seen = seen.map(Arc::new);
                self.watch.sights.send_replace(Sight { round, seen });
            }
        }
    }

    /// Under the lock, so that nobody begins to wait for a watch that is over.
    fn leave_if_nobody_waits(&self, shared: &Shared) -> bool {
        let mut table = shared.watches.lock();
        let nobody = self.watch.sights.receiver_count() == 0;
        if nobody {
            table.remove(&self.id);
        }
        nobody
    }
}

fn runs(seen: &Snapshot) -> bool {
    matches!(seen.standing, Standing::InFlight { lease_left } if !lease_left.is_zero())
}

impl Drop for Looker {
    /// The runtime went down under it: whoever waits on another one starts anew.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut table = shared.watches.lock();
            let ours = |watch: &Watch| Arc::ptr_eq(&watch.round, &self.watch.round);
            if table.get(&self.id).is_some_and(ours) {
                table.remove(&self.id);
            }
        }
    }
}
