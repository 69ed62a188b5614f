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
    /// Call it right before the first byte goes out, after slow steps such as connecting. If it may
    /// not, send nothing and report that the operation was never reached: another owner may run it
    /// by now. What runs unguarded may always begin.
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
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        time::Duration,
    };

    use semel_core::{
        Answer, Caller, ExecutionResult, Fingerprint, OnUnknown, Policy, Problem, Reason, Reply,
        Scope, Standing, Store, Verdict,
    };
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::{
        MemoryStore, Operation, Semel,
        clock::tests::{SUSPENDED, suspend},
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn id() -> RecordId {
        let (scope, key) = (Scope::new("s").unwrap(), Key::new("k").unwrap());
        RecordId::new(scope, Caller::anonymous(), key)
    }

    fn operation() -> Operation {
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        let on_unknown = OnUnknown::Rerun;
        Operation::new(id(), fingerprint, Arc::new(Policy { on_unknown, ..Policy::default() }))
    }

    fn completed() -> ExecutionResult {
        let (verdict, reason) = (Verdict::Completed, Reason::Answered(200));
        ExecutionResult::Answered { verdict, answer: Answer::not_retained(200), reason }
    }

    /// A store whose clock counts through a suspend. The machine sleeps for `asleep` between its
    /// next claim and the reply.
    fn store(asleep: &Arc<AtomicU32>) -> MemoryStore {
        let (origin, asleep) = (Instant::now(), Arc::clone(asleep));
        MemoryStore::with_clock(move || {
            let now = origin.elapsed() + SUSPENDED.get();
            suspend(Duration::from_secs(asleep.swap(0, Ordering::SeqCst).into()));
            now
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_slept_through_its_lease_does_not_begin_with_it() {
        for (seconds, lease_left) in [(29, Some(1)), (31, Some(30)), (3600, None)] {
            let asleep = Arc::new(AtomicU32::new(0));
            let store = store(&asleep);
            let semel = Semel::builder(store.clone()).upkeep(false).build();
            // All other store calls are done.
            semel.keep_house();
            sleep(Duration::from_millis(10)).await;
            asleep.store(seconds, Ordering::SeqCst);
            let pending = semel.begin(operation(), move |lease: Lease| async move {
                assert!(lease.may_begin());
                let seen = store.get(&id()).await.unwrap().unwrap();
                let Standing::InFlight { lease_left: left } = seen.standing else {
                    panic!("{seen:?}")
                };
                assert_eq!(Some(left.as_secs()), lease_left, "it is claimed again where it lapsed");
                completed()
            });
            let expected = match lease_left {
                Some(_) => Reply::Ran(Answer::not_retained(200)),
                // It is too late for this client. The claim is given back.
                None => Reply::Problem(Problem::StoreUnavailable),
            };
            assert_eq!(pending.await, expected, "{seconds}");
            assert_eq!(semel.drain(LEASE).await, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_looks_once_more_before_it_begins() {
        let semel = Semel::new(store(&Arc::default()));
        let reply = semel.begin(operation(), |lease: Lease| async move {
            assert!(lease.may_begin());
            // However long it takes to connect: the lease is renewed.
            sleep(LEASE * 10).await;
            assert!(lease.may_begin());
            suspend(LEASE);
            assert!(!lease.may_begin(), "the machine slept, and nothing is renewed yet");
            sleep(Duration::from_secs(2)).await;
            assert!(lease.may_begin(), "nobody took it");
            lease.lose();
            assert!(!lease.may_begin());
            ExecutionResult::NeverReached
        });
        assert_eq!(reply.await, Reply::Problem(Problem::UpstreamUnreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_slept_does_not_trust_what_it_knew() {
        let store = store(&Arc::default());
        let semel = Semel::new(store.clone());
        semel.keep_house();
        sleep(Duration::from_secs(1)).await;
        let begin = || semel.begin(operation(), |_| async { completed() });
        assert_eq!(begin().await, Reply::Ran(Answer::not_retained(200)));
        let now = || semel.shared.clock.now();
        let known = |from| semel.shared.cache.get(&id(), operation().fingerprint, from, now());
        assert!(known(crate::ReplaySource::Cache).is_some());
        suspend(Duration::from_secs(1));
        assert!(known(crate::ReplaySource::Cache).is_none(), "an operator may have acted");
        assert!(known(crate::ReplaySource::CacheWhileAway).is_some());
        suspend(Duration::from_secs(300));
        assert!(known(crate::ReplaySource::CacheWhileAway).is_none());
    }

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
