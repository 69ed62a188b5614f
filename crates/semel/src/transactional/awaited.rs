//! The fingerprints of local requests that wait for a transaction of another process.
//!
//! An open transaction is visible to others, but its fingerprint is not. So a lookup assumes the
//! fingerprint of the requests that wait for it; they are compared with the real one once it is
//! recorded. Where requests with different fingerprints wait for one key, neither gets a reply
//! before that.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Fence, Fingerprint, OnUnknown, RecordId, Snapshot, StateView};
use tokio::time::Instant;

/// The maximum number of records. Beyond it, a lookup reports only that the operation runs.
const RECORDS_MAX: usize = 10_000;

/// When the table is full, records without a new waiter for this long are evicted: their waiters
/// have given up, or will poll again.
const AGE_MAX: Duration = Duration::from_secs(60);

/// How long a waiter relies on a lookup that found the operation running.
pub(super) const RECHECK_AFTER: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct AwaitedRecords(Mutex<HashMap<RecordId, AwaitedFingerprint>>);

/// The fingerprint of the requests that wait for a record.
#[derive(Clone, Copy, Debug)]
struct AwaitedFingerprint {
    /// `None` if they differ.
    fingerprint: Option<Fingerprint>,
    /// When the last of them arrived.
    since: Instant,
}

impl AwaitedRecords {
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, AwaitedFingerprint>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: &RecordId, fingerprint: Fingerprint) {
        let (mut records, now) = (self.lock(), Instant::now());
        if let Some(known) = records.get_mut(id) {
            known.fingerprint = known.fingerprint.filter(|known| *known == fingerprint);
            known.since = now;
            return;
        }
        if records.len() >= RECORDS_MAX {
            records.retain(|_, meant| now.duration_since(meant.since) < AGE_MAX);
        }
        if records.len() < RECORDS_MAX {
            let meant = AwaitedFingerprint { fingerprint: Some(fingerprint), since: now };
            records.insert(id.clone(), meant);
        }
    }

    /// No other process runs it any more.
    pub(super) fn remove(&self, id: &RecordId) {
        let mut records = self.lock();
        if !records.is_empty() {
            records.remove(id);
        }
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<Snapshot> {
        let fingerprint = self.lock().get(id)?.fingerprint?;
        Fence::new(1).map(|fence| running(fingerprint, fence))
    }
}

/// The snapshot of an operation that another transaction runs.
pub(super) fn running(fingerprint: Fingerprint, fence: Fence) -> Snapshot {
    let mut seen =
        Snapshot::new(fingerprint, fence, StateView::InFlight { lease_left: RECHECK_AFTER });
    seen.on_unknown = OnUnknown::Rerun;
    seen
}

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Scope};

    use super::*;

    fn id(number: usize) -> RecordId {
        let key = Key::new(&number.to_string()).unwrap();
        RecordId::new(Scope::new("orders").unwrap(), Caller::anonymous(), key)
    }

    #[tokio::test(start_paused = true)]
    async fn records_without_waiters_are_evicted() {
        let (awaited, meaning) = (AwaitedRecords::default(), Fingerprint::of_parts("test", &[]));
        (0..RECORDS_MAX).for_each(|number| awaited.add(&id(number), meaning));
        awaited.add(&id(RECORDS_MAX), meaning);
        assert!(awaited.get(&id(RECORDS_MAX)).is_none(), "all of them may be waited for");
        tokio::time::advance(AGE_MAX / 2).await;
        awaited.add(&id(7), meaning);
        tokio::time::advance(AGE_MAX / 2).await;
        awaited.add(&id(RECORDS_MAX), meaning);
        assert!(awaited.get(&id(RECORDS_MAX)).is_some() && awaited.get(&id(7)).is_some());
        assert!(awaited.get(&id(8)).is_none());
    }
}
