//! The lease of an execution: proof that this run may act.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use semel_core::{
    Claimant, Fence, Grant, Key, OwnerToken, ProcessTime, RecordId,
    limit::{AnswerTag, LimitSet},
};

use crate::{Deadline, clock::EngineClock, keys};

/// The right to run one operation, given to the execution.
///
/// The engine renews it while the operation runs. Nothing can stop an operation that still runs
/// after another owner took the record over, for example after the machine was suspended. Its fence
/// is lower than the new owner's, so a database that stores the highest fence can refuse its
/// writes.
#[derive(Clone)]
pub struct Lease(Arc<LeaseState>);

struct LeaseState {
    id: RecordId,
    /// The grant and the owner token.
    grant: OnceLock<(Grant, OwnerToken)>,
    /// What the operation called its answer.
    answer_tag: OnceLock<AnswerTag>,
    /// Whether the operation was called.
    has_begun: AtomicBool,
    is_lost: AtomicBool,
    clock: EngineClock,
    /// When the owner stops relying on the lease, by the clock of the engine.
    valid_until_ms: AtomicU64,
    /// The deadline of the client that the operation runs for.
    deadline: Option<Deadline>,
    /// Whether the reply of a client with a deadline was reported.
    reported: AtomicBool,
}

impl Lease {
    /// A lease without a grant.
    pub(crate) fn new(id: RecordId, clock: EngineClock, deadline: Option<Deadline>) -> Self {
        Self(Arc::new(LeaseState {
            id,
            grant: OnceLock::new(),
            answer_tag: OnceLock::new(),
            has_begun: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            clock,
            valid_until_ms: AtomicU64::new(0),
            deadline,
            reported: AtomicBool::new(false),
        }))
    }

    /// Marks the operation as called.
    pub(crate) fn begin(&self) {
        self.0.has_begun.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.has_begun.load(Ordering::Relaxed)
    }

    /// Whether the one who asks is the first: the driver that has a reply, or the client at its
    /// deadline. Only the first reports an event, so that a request counts once.
    pub(crate) fn reports_reply(&self) -> bool {
        self.0.deadline.is_none() || !self.0.reported.swap(true, Ordering::Relaxed)
    }

    /// Stores the grant of the store.
    pub(crate) fn grant(&self, grant: Grant, owner: OwnerToken, until: ProcessTime) {
        self.extend(until);
        let _ = self.0.grant.set((grant, owner));
    }

    /// Extends the lease after a grant or a renewal.
    pub(crate) fn extend(&self, until: ProcessTime) {
        self.0.valid_until_ms.fetch_max(until.as_millis(), Ordering::Relaxed);
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

    /// A key for a call that the operation makes in turn, to a bank for example. It is the same at
    /// every attempt, and differs for every record and every `purpose`.
    ///
    /// Do not forward the client's own key: another client may send the same one.
    ///
    /// Two processes can run one operation at the same time, whatever the store: the first may be
    /// paused beyond its lease, or lose the connection that holds its lock in a
    /// [transaction](crate::transactional). The store accepts the result of only one of them. The
    /// calls of the other one are harmless only with such a key.
    #[must_use]
    pub fn key_for(&self, purpose: &str) -> Key {
        let RecordId { scope, caller, key } = self.id();
        keys::from_parts(purpose, &[scope.as_str(), caller.as_str(), key.as_str()])
    }

    /// The number of this claim, higher than that of every earlier claim of the same key. `None`
    /// for an unguarded run, until its claim turns out to be granted.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.0.grant.get().map(|(grant, _)| grant.fence)
    }

    /// 1 for the first run, and for an unguarded run without a grant. A higher number means that an
    /// earlier run may have had effects.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.0.grant.get().map_or(1, |(grant, _)| grant.attempt)
    }

    /// The velocity limits of the request that only report and were exceeded, by their positions.
    #[must_use]
    pub fn exceeded_limits(&self) -> LimitSet {
        self.0.grant.get().map_or(LimitSet::NONE, |(grant, _)| grant.exceeded)
    }

    /// Names the answer of this run for velocity limits that count by it. The first name stays.
    pub fn set_answer_tag(&self, tag: AnswerTag) {
        let _ = self.0.answer_tag.set(tag);
    }

    pub(crate) fn answer_tag(&self) -> Option<AnswerTag> {
        self.0.answer_tag.get().cloned()
    }

    /// Whether the store has reported that the record has another owner or is gone. The result of
    /// this run will not be recorded. A record that is only held, because the lease expired, still
    /// takes the late answer: it is not lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Relaxed)
    }

    /// Whether the operation may still begin: the lease is not lost and has not expired, renewals
    /// included, and the deadline of the client has not passed.
    ///
    /// Call it right before the first byte is sent, after slow steps such as connecting. If it
    /// returns false, send nothing and report that the operation was never reached: another owner
    /// may already run it. An unguarded run has no lease to lose.
    #[must_use]
    pub fn can_begin(&self) -> bool {
        let until = ProcessTime::from_millis(self.0.valid_until_ms.load(Ordering::Relaxed));
        !self.is_lost()
            && (self.fence().is_none() || self.0.clock.now() < until)
            && !self.0.deadline.is_some_and(Deadline::has_passed)
    }

    /// The deadline of the client, if it has one. It does not bound an operation that has begun.
    #[must_use]
    pub fn deadline(&self) -> Option<Deadline> {
        self.0.deadline
    }

    /// The identity that writes to the record; `None` without a grant.
    pub(crate) fn claimant(&self) -> Option<Claimant> {
        self.0.grant.get().map(|(grant, owner)| Claimant::new(grant.fence, *owner))
    }

    pub(crate) fn mark_lost(&self) {
        self.0.is_lost.store(true, Ordering::Relaxed);
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
        Scope, StateView, Store, Verdict,
    };
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::{
        BeginRequest, ExecutionOutput, MemoryStore, Semel,
        clock::tests::{SUSPENDED, suspend},
    };

    const LEASE: Duration = Duration::from_secs(30);

    fn id() -> RecordId {
        let (scope, key) = (Scope::new("s").unwrap(), Key::new("k").unwrap());
        RecordId::new(scope, Caller::anonymous(), key)
    }

    fn operation() -> BeginRequest {
        let fingerprint = Fingerprint::from_bytes(&[1; 33]).unwrap();
        let on_unknown = OnUnknown::Rerun;
        BeginRequest::new(id(), fingerprint, Arc::new(Policy { on_unknown, ..Policy::default() }))
    }

    fn begin<F>(
        semel: &Semel,
        operation: BeginRequest,
        execute: impl FnOnce(Lease) -> F + Send + 'static,
    ) -> impl Future<Output = Reply>
    where
        F: Future<Output = ExecutionResult> + Send + 'static,
    {
        let execute = |lease| {
            let end = execute(lease);
            async { ExecutionOutput::from(end.await) }
        };
        semel.begin(operation, execute).reply()
    }

    fn completed() -> ExecutionResult {
        let (verdict, reason) = (Verdict::Completed, Reason::Answered(200));
        ExecutionResult::Answered { verdict, answer: Answer::not_retained(200), reason }
    }

    /// A store whose clock counts through a suspend. The next time the store reads its clock, the
    /// machine is suspended for `suspend_seconds`: between a call and its reply.
    fn suspending_store(suspend_seconds: &Arc<AtomicU32>) -> MemoryStore {
        let (origin, suspend_seconds) = (Instant::now(), Arc::clone(suspend_seconds));
        MemoryStore::with_clock(move || {
            let now = origin.elapsed() + SUSPENDED.get();
            suspend(Duration::from_secs(suspend_seconds.swap(0, Ordering::SeqCst).into()));
            now
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_does_not_begin_after_the_deadline_of_its_client() {
        let store = suspending_store(&Arc::default());
        let semel = Semel::builder(store.clone()).upkeep(false).build();
        let mut operation = operation();
        operation.deadline = Some(semel.deadline_in(Duration::from_secs(1)));
        let pending = begin(&semel, operation, |lease: Lease| async move {
            assert!(lease.can_begin());
            // Connecting takes longer than the client waits.
            sleep(Duration::from_secs(2)).await;
            if lease.can_begin() { completed() } else { ExecutionResult::NeverReached }
        });
        assert_eq!(pending.await, Reply::Problem(Problem::DeadlineExceededInFlight));
        assert_eq!(semel.drain(LEASE).await, 0);
        let seen = store.get(&id()).await.unwrap().unwrap();
        assert!(matches!(seen.state, StateView::Released { .. }), "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_does_not_begin_with_a_lease_that_expired_during_suspend() {
        for (seconds, lease_left) in [(29, Some(1)), (31, Some(30)), (3600, None)] {
            let suspend_seconds = Arc::new(AtomicU32::new(0));
            let store = suspending_store(&suspend_seconds);
            let semel = Semel::builder(store.clone()).upkeep(false).build();
            // Lets maintenance make its first store calls, so that the next clock read is that of
            // the claim.
            semel.start_maintenance();
            sleep(Duration::from_millis(10)).await;
            suspend_seconds.store(seconds, Ordering::SeqCst);
            let pending = begin(&semel, operation(), move |lease: Lease| async move {
                assert!(lease.can_begin());
                let seen = store.get(&id()).await.unwrap().unwrap();
                let StateView::InFlight { lease_left: left } = seen.state else {
                    panic!("{seen:?}")
                };
                assert_eq!(Some(left.as_secs()), lease_left, "an expired lease is claimed again");
                completed()
            });
            let expected = match lease_left {
                Some(_) => Reply::Ran(Answer::not_retained(200)),
                // The claim timeout of this client has passed. The unused claim is released.
                None => Reply::Problem(Problem::StoreUnavailable),
            };
            assert_eq!(pending.await, expected, "{seconds}");
            assert_eq!(semel.drain(LEASE).await, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn can_begin_follows_renewals_suspends_and_loss() {
        let semel = Semel::new(suspending_store(&Arc::default()));
        let reply = begin(&semel, operation(), |lease: Lease| async move {
            assert!(lease.can_begin());
            // The lease is renewed, however long connecting takes.
            sleep(LEASE * 10).await;
            assert!(lease.can_begin());
            suspend(LEASE);
            assert!(!lease.can_begin(), "the machine slept, and nothing is renewed yet");
            sleep(Duration::from_secs(2)).await;
            assert!(lease.can_begin(), "it has no other owner");
            lease.mark_lost();
            assert!(!lease.can_begin());
            ExecutionResult::NeverReached
        });
        assert_eq!(reply.await, Reply::Problem(Problem::UpstreamUnreachable));
    }

    #[tokio::test(start_paused = true)]
    async fn suspended_time_counts_towards_the_cache_ttl() {
        let store = suspending_store(&Arc::default());
        let semel = Semel::new(store.clone());
        semel.start_maintenance();
        sleep(Duration::from_secs(1)).await;
        let reply = begin(&semel, operation(), |_| async { completed() });
        assert_eq!(reply.await, Reply::Ran(Answer::not_retained(200)));
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
    fn a_derived_key_is_stable_and_unique_per_record_and_purpose() {
        let lease = |caller: &str| {
            let caller = Caller::new(caller).unwrap();
            let id = RecordId::new(Scope::new("s").unwrap(), caller, Key::new("k").unwrap());
            Lease::new(id, EngineClock::new(), None)
        };
        let bank = lease("a").key_for("bank");
        assert_eq!(bank, lease("a").key_for("bank"));
        assert_ne!(bank, lease("b").key_for("bank"));
        assert_ne!(bank, lease("a").key_for("mail"));
    }
}
