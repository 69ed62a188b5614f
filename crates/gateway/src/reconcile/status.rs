//! When held records are read next, for the advice to their clients.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel::core::{Fence, RecordId};
use semel_tower::HeldStatus;
use tokio::time::Instant;

use super::{HeldListing, ReconciledScope};

/// The shortest advice, for a read that is due.
const NEXT_READ_MIN: Duration = Duration::from_millis(100);

/// The held records of all reconciled scopes, as this process saw them last.
#[derive(Debug, Default)]
pub(crate) struct HeldReads(Mutex<HashMap<RecordId, ReadState>>);

#[derive(Clone, Copy, Debug)]
struct ReadState {
    fence: Fence,
    is_stopped: bool,
    /// When this process reads it next, if it is the reader.
    next: Option<Instant>,
}

impl HeldReads {
    /// Replaces what is known by what the store has now.
    pub(crate) fn update(&self, held: &HeldListing, scopes: &[ReconciledScope]) {
        let mut known = self.lock();
        let mut now = HashMap::with_capacity(held.records.len());
        for record in &held.records {
            let Some(scope) = scopes.iter().find(|known| known.scope == record.id.scope) else {
                continue;
            };
            let age = record.ended.unwrap_or_default();
            let is_stopped = held.note(record).is_some_and(|note| note.is_stopped)
                || age >= scope.rule.plan.give_up;
            let before = known.get(&record.id).filter(|before| before.fence == record.fence);
            let next = before.and_then(|before| before.next);
            let state = ReadState { fence: record.fence, is_stopped, next };
            now.insert(record.id.clone(), state);
        }
        *known = now;
    }

    pub(super) fn set_next(&self, id: &RecordId, next: Option<Instant>) {
        if let Some(state) = self.lock().get_mut(id) {
            state.next = next;
            state.is_stopped = next.is_none();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, ReadState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The held records of one route.
#[derive(Debug)]
pub(crate) struct RouteHeldStatus {
    pub(crate) reads: Arc<HeldReads>,
    pub(crate) every: Duration,
}

impl HeldStatus for RouteHeldStatus {
    fn interval(&self) -> Duration {
        self.every
    }

    fn next_read(&self, id: &RecordId) -> Option<Duration> {
        match self.reads.lock().get(id) {
            Some(ReadState { is_stopped: true, .. }) => None,
            Some(ReadState { next: Some(next), .. }) => {
                Some(next.saturating_duration_since(Instant::now()).max(NEXT_READ_MIN))
            }
            // Not seen yet, or another process reads it.
            Some(_) | None => Some(self.every),
        }
    }
}
