//! What an execution is given: the proof that it is the one that may run.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use semel_core::{Claimant, Fence, Grant, Key, OwnerToken, ProcessTime, RecordId};

use crate::{clock::Clock, keys};

/// The right to run one operation, given to whoever runs it.
///
/// The engine renews it for as long as the operation runs. Nothing can stop an operation that goes
/// on beside a new owner after a long silence, a suspended machine for example; but its fence is
/// lower than the new owner's, so a database that remembers the highest fence can refuse it.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    id: RecordId,
    /// What was granted, and to which owner token.
    grant: OnceLock<(Grant, OwnerToken)>,
    lost: AtomicBool,
    clock: Clock,
    /// Until when the owner relies on it, in milliseconds of the clock.
    until: AtomicU64,
}

impl Lease {
    /// A lease that nothing was granted for yet.
    pub(crate) fn new(id: RecordId, clock: Clock) -> Self {
        let (grant, lost, until) = (OnceLock::new(), AtomicBool::new(false), AtomicU64::new(0));
        Self(Arc::new(Inner { id, grant, lost, clock, until }))
    }

    /// The store granted the claim of this owner.
    pub(crate) fn grant(&self, grant: Grant, owner: OwnerToken, until: ProcessTime) {
        self.extend(until);
        let _ = self.0.grant.set((grant, owner));
    }

    /// The store has renewed it.
    pub(crate) fn extend(&self, until: ProcessTime) {
        self.0.until.fetch_max(until.as_millis(), Ordering::Relaxed);
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

    /// A key for something that the operation calls in turn, such as the bank: the same at every
    /// attempt, and another for every record and every `what`.
    ///
    /// The client's own key must not be passed on as it is: another client may send the same.
    ///
    /// Two processes can run one operation at the same time, whatever the store: the first may be
    /// paused beyond its lease, or lose the connection that holds its lock in a
    /// [transaction](crate::joint). The store accepts the result of one of them; what the other one
    /// calls meanwhile is harmless only under such a key.
    #[must_use]
    pub fn key_for(&self, what: &str) -> Key {
        let RecordId { scope, caller, key } = self.id();
        keys::from_parts(what, &[scope.as_str(), caller.as_str(), key.as_str()])
    }

    /// The number of this claim, higher than that of every earlier one of the same key. `None`
    /// where the store was away and the route chose to run unguarded, for as long as no claim turns
    /// out to be granted.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.0.grant.get().map(|(grant, _)| grant.fence)
    }

    /// 1 for the first run; higher means that an earlier one may have left traces.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.grant.get().map_or(1, |(grant, _)| grant.attempt)
    }

    /// Whether the store has said that the record belongs to somebody else by now, or is gone. What
    /// this run still does will not be recorded. (A record that was only held meanwhile, because
    /// nothing was heard of this run, still takes its answer: that is not lost.)
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Whether the operation may still begin: the lease was not lost, and its owner may rely on it
    /// now, renewals included.
    ///
    /// Ask right before the first byte goes out, after whatever took time, such as to connect. If
    /// it may not, send nothing and say that the operation was never reached: somebody else may run
    /// it by now. What runs unguarded may always begin.
    #[must_use]
    pub fn may_begin(&self) -> bool {
        let until = ProcessTime::from_millis(self.0.until.load(Ordering::Relaxed));
        !self.is_lost() && (self.fence().is_none() || self.0.clock.now() < until)
    }

    /// Who writes to the record; `None` where nothing was claimed.
    pub(crate) fn claimant(&self) -> Option<Claimant> {
        self.0.grant.get().map(|(grant, owner)| Claimant { fence: grant.fence, owner: *owner })
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

#[cfg(test)]
mod tests {
    use semel_core::{Caller, Scope};

    use super::*;

    #[test]
    fn a_derived_key_is_the_records_own() {
        let lease = |caller: &str| {
            let caller = Caller::new(caller).unwrap();
            let id = RecordId::new(Scope::new("s").unwrap(), caller, Key::new("k").unwrap());
            Lease::new(id, Clock::new())
        };
        let bank = lease("a").key_for("bank");
        assert_eq!(bank, lease("a").key_for("bank"));
        assert_ne!(bank, lease("b").key_for("bank"));
        assert_ne!(bank, lease("a").key_for("mail"));
    }
}
