//! The state of a cache: looks up records in Redis, validates what it finds, and caches what the
//! store answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{
    Answer, Changed, Claim, Claimant, Claimed, Effect, Epoch, Fingerprint, Grant, Occupied,
    RecordId, Store, StoreError, StoreId, time::millis,
};
use tokio::time::{Instant, timeout};

use crate::{
    Options,
    clock::EntryClock,
    entry::{CachedState, RecordDigest, RecordName, RedisEntry},
    epoch::EpochCache,
    grants::{GrantedClaim, Grants},
    lookup_budget::LookupBudget,
    notifications::ChangeNotifications,
    request_queue::{CacheCommand, RequestQueue},
};

/// The maximum TTL of an entry. Clients repeat soon or not at all.
const ENTRY_TTL_MAX_MILLIS: u64 = 10 * 60 * 1000;

/// The maximum TTL of a hint.
const HINT_TTL_MAX: Duration = Duration::from_secs(1);

/// How long a watch waits for a message, because messages may get lost.
const WATCH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct CacheState {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) identity: StoreId,
    clock: EntryClock,
    cache_on_claim_only: bool,
    pub(crate) requests: RequestQueue,
    pub(crate) epoch_cache: EpochCache,
    pub(crate) notifications: ChangeNotifications,
    pub(crate) lookup_budget: LookupBudget,
    pub(crate) grants: Grants,
    counters: CacheCounters,
    created_at: Instant,
    /// Until when hints are not used, in milliseconds since `created_at`.
    hints_suspended_until: AtomicU64,
}

#[derive(Debug, Default)]
struct CacheCounters {
    lookups: AtomicU64,
    hits: AtomicU64,
    hints: AtomicU64,
    writes: AtomicU64,
}

/// What a cache has done so far, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Claims that were looked up in Redis.
    pub lookups: u64,
    /// Claims that Redis answered: replays, and keys that were used for another request.
    pub hits: u64,
    /// Claims that wait because of a hint in Redis that their operation runs.
    pub hints: u64,
    /// Entries that were written.
    pub writes: u64,
    /// Whether Redis is in use now.
    pub connected: bool,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl CacheState {
    pub(crate) fn new(store: Arc<dyn Store>, identity: StoreId, options: &Options) -> Self {
        Self {
            store,
            identity,
            clock: options.clock.clone(),
            cache_on_claim_only: options.cache_on_claim_only,
            requests: RequestQueue::default(),
            epoch_cache: EpochCache::default(),
            notifications: ChangeNotifications::default(),
            lookup_budget: LookupBudget::default(),
            grants: Grants::default(),
            counters: CacheCounters::default(),
            created_at: Instant::now(),
            hints_suspended_until: AtomicU64::new(0),
        }
    }

    pub(crate) fn counts(&self) -> CacheCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheCounts {
            lookups: read(&self.counters.lookups),
            hits: read(&self.counters.hits),
            hints: read(&self.counters.hints),
            writes: read(&self.counters.writes),
            connected: self.requests.is_open(),
        }
    }

    fn name(&self, id: &RecordId) -> RecordName {
        RecordDigest::of(&self.identity, id).name()
    }

    // === claims ===

    /// Looks up a claim in Redis. Without a recent epoch of the store no entry would be valid.
    pub(crate) async fn lookup(&self, claim: &Claim) -> Option<Occupied> {
        self.epoch_cache.epoch(Instant::now())?;
        count(&self.counters.lookups);
        let digest = RecordDigest::of(&self.identity, &claim.id);
        let bytes = self.requests.lookup(digest.name()).await?;
        let entry = RedisEntry::read(&bytes, &digest)?;
        let occupied = self.evaluate(entry, claim)?;
        let waits = matches!(occupied, Occupied::InFlight { .. });
        count(if waits { &self.counters.hints } else { &self.counters.hits });
        self.lookup_budget.on_repeat();
        Some(occupied)
    }

    fn evaluate(&self, entry: RedisEntry, claim: &Claim) -> Option<Occupied> {
        if self.epoch_cache.epoch(Instant::now())? != entry.epoch {
            return None;
        }
        let same = entry.fingerprint == claim.fingerprint;
        match entry.state {
            CachedState::Completed(answer) => {
                let now = self.clock.now().saturating_add(self.clock.margin());
                let left = Duration::from_millis(entry.expires.checked_sub(now)?);
                if !same {
                    return Some(Occupied::FingerprintMismatch);
                }
                Some(Occupied::Completed { answer, expires_in: left })
            }
            CachedState::InFlight => {
                let left = entry.expires.saturating_sub(self.clock.now());
                let lease_left = Duration::from_millis(left);
                let good = same && left > 0 && !self.hints_suspended();
                good.then_some(Occupied::InFlight { lease_left })
            }
        }
    }

    /// Claims in the store, and caches the result.
    pub(crate) async fn claim_in_store(
        &self,
        claim: &Claim,
        looked: bool,
    ) -> Result<Claimed, StoreError> {
        // Both are read before the record: the record may be newer, never older.
        let epoch = self.epoch_cache.epoch(Instant::now());
        let asked = self.clock.now();
        // When a repeated claim was granted is unknown.
        let keep = looked && !self.cache_on_claim_only && !self.hints_suspended();
        let mut unsettled = UnansweredClaim { cache: self, lease: claim.lease, settled: false };
        let claimed = self.store.claim(claim).await;
        unsettled.settled = match &claimed {
            Ok(_) => true,
            Err(error) => error.effect() == Effect::None,
        };
        match &claimed {
            Ok(Claimed::Granted(Grant { fence, .. })) if looked => {
                self.lookup_budget.on_miss();
                if keep {
                    self.grants.put(*fence, claim, asked);
                }
            }
            Ok(Claimed::Occupied(occupied)) if self.requests.is_open() => match epoch {
                Some(epoch) => self.on_occupied(claim, occupied, asked, epoch),
                // With a budget, the connection refreshes the epoch.
                None => self.lookup_budget.on_repeat(),
            },
            Ok(_) | Err(_) => {}
        }
        claimed
    }

    /// The store refused a claim that was sent at `asked`. Only a completed record may be cached;
    /// a record in flight may be hinted (law 12).
    fn on_occupied(&self, claim: &Claim, occupied: &Occupied, asked: u64, epoch: Epoch) {
        if let Occupied::Completed { answer, expires_in } = occupied {
            let expires = asked.saturating_add(millis(*expires_in));
            let state = CachedState::Completed(answer.clone());
            if self.write(&claim.id, claim.fingerprint, epoch, expires, state) {
                self.lookup_budget.on_repeat();
            }
        } else if let Occupied::InFlight { lease_left } = occupied
            && !self.clock.is_exact()
        {
            let expires = asked.saturating_add(millis((*lease_left).min(HINT_TTL_MAX)));
            self.write(&claim.id, claim.fingerprint, epoch, expires, CachedState::InFlight);
            // The owner removes the hint when the operation ends.
            self.requests.push(CacheCommand::Await(self.name(&claim.id), None));
        } else if *occupied == Occupied::FingerprintMismatch {
            self.lookup_budget.on_repeat();
        }
    }

    /// Writes an entry. Returns whether the entry is cacheable.
    fn write(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        epoch: Epoch,
        expires: u64,
        state: CachedState,
    ) -> bool {
        let hint = state == CachedState::InFlight;
        let margin = if hint { 0 } else { self.clock.margin() };
        let left = expires.saturating_sub(margin).saturating_sub(self.clock.now());
        let millis = left.min(ENTRY_TTL_MAX_MILLIS);
        let digest = RecordDigest::of(&self.identity, id);
        let entry = RedisEntry { fingerprint, epoch, expires, state }.write(&digest);
        let Some(entry) = entry.filter(|_| millis > 0) else { return false };
        if self.requests.push(CacheCommand::Put { name: digest.name(), entry, millis, hint }) {
            count(&self.counters.writes);
        }
        true
    }

    // === suspended hints ===

    /// Whether a claim of this process may have been granted without a reply. Then a hint may be
    /// about this process's own claim, and only the store can compare the owner (law 7).
    fn hints_suspended(&self) -> bool {
        millis(self.created_at.elapsed()) < self.hints_suspended_until.load(Ordering::Relaxed)
    }

    /// Suspends hints for as long as such a claim may be retried.
    fn suspend_hints(&self, lease: Duration) {
        let until = self.created_at.elapsed().saturating_add(lease.saturating_mul(12));
        self.hints_suspended_until.fetch_max(millis(until), Ordering::Relaxed);
    }

    // === finished operations ===

    /// Takes the data of a granted claim that is about to end, and the epoch before that.
    pub(crate) fn take_granted(&self, by: Claimant) -> Option<(GrantedClaim, Epoch)> {
        let granted = self.grants.take(by)?;
        Some((granted, self.epoch_cache.epoch(Instant::now())?))
    }

    /// The store has recorded the answer.
    pub(crate) fn on_completed(
        &self,
        id: &RecordId,
        answer: &Answer,
        granted: Option<(GrantedClaim, Epoch)>,
    ) {
        self.changed(id);
        if let Some((granted, epoch)) = granted
            && let Some(expires) = granted.expires(self.clock.now(), self.clock.margin())
        {
            let state = CachedState::Completed(answer.clone());
            self.write(id, granted.fingerprint, epoch, expires, state);
        }
    }

    /// A record has changed: notifies its waiters.
    pub(crate) fn changed(&self, id: &RecordId) {
        if self.notifications.any_awaited() {
            let name = self.name(id);
            if self.notifications.on_changed(&name, Instant::now()) {
                self.requests.push(CacheCommand::Changed(name));
            }
        }
    }

    /// An operator has acted through this process, or may have.
    pub(crate) fn on_operator_act(&self, id: &RecordId) {
        self.epoch_cache.invalidate(Instant::now());
        self.requests.push(CacheCommand::Remove(self.name(id)));
        self.changed(id);
    }

    // === watches ===

    /// Resolves when a gateway announces that the record has changed.
    pub(crate) async fn watch(self: &Arc<Self>, id: &RecordId) -> Option<Changed> {
        if !self.requests.is_open() {
            return None;
        }
        let name = self.name(id);
        let woken = self.notifications.wait(name)?;
        let guard = WaiterGuard { cache: Arc::clone(self), name };
        self.notifications.add_awaited(&[name], Instant::now());
        if !self.requests.announce(name).await {
            return None;
        }
        Some(Box::pin(async move {
            let _guard = guard;
            let _ = timeout(WATCH_TIMEOUT, woken).await;
        }))
    }
}

/// Removes a waiter when it is dropped.
struct WaiterGuard {
    cache: Arc<CacheState>,
    name: RecordName,
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.cache.notifications.remove_closed(&self.name);
    }
}

/// A claim that was sent to the store. If its caller goes away, or the effect is unknown, it may
/// have been granted.
struct UnansweredClaim<'a> {
    cache: &'a CacheState,
    lease: Duration,
    settled: bool,
}

impl Drop for UnansweredClaim<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.cache.suspend_hints(self.lease);
        }
    }
}
