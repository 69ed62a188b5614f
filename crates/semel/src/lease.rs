//! What an execution is given: the proof that it is the one that may run.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use semel_core::{Fence, Grant, Key, RecordId};

/// The right to run one operation, given to whoever runs it.
///
/// The engine renews it for as long as the operation runs. Nothing can stop an operation that goes
/// on beside a new owner after a long silence, a suspended machine for example; but its fence is
/// lower than the new owner's, so a database that remembers the highest fence can refuse it.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    id: RecordId,
    grant: Option<Grant>,
    lost: AtomicBool,
}

impl Lease {
    pub(crate) fn new(id: RecordId, grant: Option<Grant>) -> Self {
        Self(Arc::new(Inner { id, grant, lost: AtomicBool::new(false) }))
    }

    /// The record: scope, caller and key.
    #[must_use]
    pub fn id(&self) -> &RecordId {
        &self.0.id
    }

    /// The key that names the operation.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.id.key
    }

    /// The number of this claim, higher than that of every earlier one of the same key. `None`
    /// where the store was away and the route chose to run unguarded.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.0.grant.map(|grant| grant.fence)
    }

    /// 1 for the first run; higher means that an earlier one may have left traces.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.grant.map_or(1, |grant| grant.attempt)
    }

    /// Whether the store has said that somebody else owns the record by now. What this run still
    /// does will not be recorded.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn lose(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("id", self.id())
            .field("fence", &self.fence())
            .field("attempt", &self.attempt())
            .field("lost", &self.is_lost())
            .finish()
    }
}
