//! The operations that run in this process, so that nobody here waits for one of them.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use semel::core::RecordId;

#[derive(Clone, Debug, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<RecordId>>>);

/// The right to run an operation here, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    running: Running,
    id: RecordId,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashSet<RecordId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self, id: &RecordId) -> Option<Claim> {
        let taken = self.lock().insert(id.clone());
        taken.then(|| Claim { running: self.clone(), id: id.clone() })
    }

    pub(super) fn has(&self, id: &RecordId) -> bool {
        self.lock().contains(id)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.running.lock().remove(&self.id);
    }
}
