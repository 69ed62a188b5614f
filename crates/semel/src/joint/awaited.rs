//! What those who wait here for somebody elsewhere want to run.
//!
//! An open transaction says nothing to others but that it is there. So a look takes it to mean what
//! they mean who wait for it; they are judged once it is recorded. Where two wait who mean
//! different things under one key, neither is told anything before that.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use semel_core::{Fence, Fingerprint, RecordId, Snapshot};

use super::store::running;

/// Beyond this many, the record is not remembered, and a look only says that somebody runs it.
const RECORDS_MAX: usize = 10_000;

/// By record; `None` where those who wait mean different things.
#[derive(Debug, Default)]
pub(super) struct Awaited(Mutex<HashMap<RecordId, Option<Fingerprint>>>);

impl Awaited {
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Option<Fingerprint>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, id: &RecordId, fingerprint: Fingerprint) {
        let mut records = self.lock();
        if let Some(known) = records.get_mut(id) {
            *known = known.filter(|known| *known == fingerprint);
        } else if records.len() < RECORDS_MAX {
            records.insert(id.clone(), Some(fingerprint));
        }
    }

    pub(super) fn remove(&self, id: &RecordId) {
        self.lock().remove(id);
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<Snapshot> {
        let fingerprint = self.lock().get(id).copied().flatten()?;
        Fence::new(1).map(|fence| running(fingerprint, fence))
    }
}
