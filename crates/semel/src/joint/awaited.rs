//! What those who wait here for somebody elsewhere want to run.
//!
//! An open transaction says nothing to others but that it is there. So a look takes it to mean what
//! they mean who wait for it; they are judged once it is recorded. Where two wait who mean
//! different things under one key, neither is told anything before that.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Fence, Fingerprint, RecordId, Snapshot};
use tokio::time::Instant;

use super::store::running;

/// Beyond this many, the record is not remembered, and a look only says that somebody runs it.
const RECORDS_MAX: usize = 10_000;

/// Where there are as many, those go for whom nobody has come for so long: who waits for them no
/// longer does so, or asks again.
const AGE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<HashMap<RecordId, Meant>>);

/// What those mean who wait for a record.
#[derive(Clone, Copy, Debug)]
struct Meant {
    /// `None` where they mean different things.
    fingerprint: Option<Fingerprint>,
    /// When the last of them came.
    since: Instant,
}

impl Awaited {
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Meant>> {
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
            let meant = Meant { fingerprint: Some(fingerprint), since: now };
            records.insert(id.clone(), meant);
        }
    }

    /// Nobody elsewhere runs it any more.
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

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Key, Scope};

    use super::*;

    fn id(number: usize) -> RecordId {
        let key = Key::new(&number.to_string()).unwrap();
        RecordId::new(Scope::new("orders").unwrap(), Caller::anonymous(), key)
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_any_more_makes_room() {
        let (awaited, meaning) = (Awaited::default(), Fingerprint::of_parts("test", &[]));
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
