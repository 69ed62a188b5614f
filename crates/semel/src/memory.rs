//! A store in memory: it keeps every law except durability. For tests.
//!
//! One mutex is the atomic step; what happens inside it is [`semel_core::rules`] and nothing else.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use hashbrown::HashMap;
use semel_core::{
    Batch, Claim, Claimant, Claimed, Cursor, Epoch, Fence, Fenced, Finish, ListQuery, Page, Record,
    RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind, StoreId,
    StoreTime, Summary, Usage,
    limit::{CounterSet, LimitCounter, LimitKey, LimitRefusal, LimitSet},
    rules::{self, Change},
    settlement::{LimitWork, limited},
    store::{METADATA_ENTRIES_MAX, check_metadata},
};

/// The time source; see [`MemoryStore::with_clock`].
type ClockFn = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A store in memory. Clones share their records.
///
/// ```
/// use semel::MemoryStore;
///
/// let store = MemoryStore::new();
/// # let _ = store;
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Mutex<MemoryState>>,
    clock: ClockFn,
    identity: Option<StoreId>,
}

#[derive(Default)]
struct MemoryState {
    records: HashMap<RecordId, Record>,
    fence: u64,
    epoch: u64,
    metadata: BTreeMap<Box<str>, Bytes>,
    counters: HashMap<LimitKey, LimitCounter>,
}

impl MemoryStore {
    /// An empty store on the process's monotonic clock.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the store's own clock")]
    pub fn new() -> Self {
        let origin = Instant::now();
        Self::with_clock(move || origin.elapsed())
    }

    /// An empty store on a clock of the test's own: time since some origin, never falling.
    #[must_use]
    pub fn with_clock(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        let mut identity = [0; 16];
        let drawn = getrandom::fill(&mut identity).is_ok();
        let identity = drawn.then(|| StoreId::from_bytes(identity));
        let shared = MemoryState { fence: first_fence(), ..MemoryState::default() };
        Self { shared: Arc::new(Mutex::new(shared)), clock: Arc::new(clock), identity }
    }

    /// The lock, then the time: read in this order, time never falls between two operations.
    fn enter(&self) -> (MutexGuard<'_, MemoryState>, StoreTime) {
        // Nothing below panics half-way through a change, so a poisoned lock still guards sound
        // data.
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        (shared, StoreTime::default().after((self.clock)()))
    }

    fn decide<T>(
        &self,
        id: &RecordId,
        rule: impl FnOnce(Option<&Record>, Fence, StoreTime) -> (T, Change),
    ) -> Result<T, StoreError> {
        self.decide_finish(id, None, rule)
    }

    fn decide_finish<T>(
        &self,
        id: &RecordId,
        finish: Option<&Finish>,
        rule: impl FnOnce(Option<&Record>, Fence, StoreTime) -> (T, Change),
    ) -> Result<T, StoreError> {
        let (mut shared, now) = self.enter();
        let fence = shared.next_fence()?;
        let (outcome, change) = rule(shared.records.get(id), fence, now);
        shared.settle(id, &change, finish, now);
        shared.apply(id, change);
        Ok(outcome)
    }
}

/// The wall clock in microseconds: a new store issues higher fences than the one before it
/// (law 11).
#[expect(clippy::disallowed_methods, reason = "the store's own clock")]
fn first_fence() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or_default()
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("records", &self.enter().0.records.len()).finish()
    }
}

impl MemoryState {
    /// A number higher than any issued before. It is spent whether or not the rule issues it: gaps
    /// do no harm.
    fn next_fence(&mut self) -> Result<Fence, StoreError> {
        let next = self.fence.checked_add(1).and_then(Fence::new);
        let next = next
            .ok_or_else(|| StoreError::new(StoreErrorKind::Corrupt, "the fences have run out"))?;
        self.fence = next.get();
        Ok(next)
    }

    /// Settles the reservations of a record that is about to change.
    fn settle(&mut self, id: &RecordId, change: &Change, finish: Option<&Finish>, now: StoreTime) {
        if let Some(work) = LimitWork::of_change(id, self.records.get(id), change, finish) {
            // It has no limits that could refuse.
            let _ = self.count(&work, now);
        }
    }

    /// Applies limits to the counters; a refusal changes none.
    fn count(&mut self, work: &LimitWork, now: StoreTime) -> Result<LimitSet, LimitRefusal> {
        let mut loaded = CounterSet::default();
        for key in work.keys().iter() {
            if let Some(counter) = self.counters.get(&key) {
                loaded.load(key, counter.clone());
            }
        }
        let admitted = work.apply(&mut loaded, now)?;
        for (key, counter) in loaded.changed() {
            if counter.is_empty() {
                self.counters.remove(&key);
            } else {
                self.counters.insert(key, counter.clone());
            }
        }
        Ok(admitted)
    }

    fn apply(&mut self, id: &RecordId, change: Change) {
        match change {
            Change::Keep => {}
            Change::Delete => {
                self.records.remove(id);
            }
            Change::Put(record) => match self.records.get_mut(id) {
                Some(place) => *place = record,
                None => drop(self.records.insert(id.clone(), record)),
            },
        }
    }

    /// Applies `rule` to every record until `limit` of them have changed.
    fn upkeep(&mut self, limit: u32, now: StoreTime, rule: impl Fn(&Record) -> Change) -> Batch {
        let mut changes = Vec::new();
        let mut more = false;
        for (id, record) in &self.records {
            let change = rule(record);
            if change == Change::Keep {
                continue;
            }
            if changes.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                more = true;
                break;
            }
            changes.push((id.clone(), change));
        }
        let done = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        for (id, change) in changes {
            self.settle(&id, &change, None, now);
            self.apply(&id, change);
        }
        Batch::new(done, more)
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let (mut shared, now) = self.enter();
        let fence = shared.next_fence()?;
        let found = shared.records.get(&claim.id);
        let mut decided = rules::claim(found, claim, fence, now);
        if let Some(work) = LimitWork::of_claim(found, &decided, claim) {
            decided = limited(decided, shared.count(&work, now));
        }
        let (claimed, change) = decided;
        shared.apply(&claim.id, change);
        Ok(claimed)
    }

    fn has_limits(&self) -> bool {
        true
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.decide(id, |found, _, now| rules::renew(found, by, lease, now))
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        self.decide_finish(id, Some(finish), |found, _, now| rules::finish(found, by, finish, now))
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let (shared, now) = self.enter();
        Ok(rules::view(shared.records.get(id), now))
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let (shared, now) = self.enter();
        let limit = query.page_size();
        let after = query.after.and_then(|cursor| Fence::new(cursor.0));
        // By fence, an order that survives changes. Listings are rare, so it is sorted here and not
        // kept sorted.
        let mut records: Vec<_> = shared.records.iter().collect();
        records.retain(|(_, record)| after.is_none_or(|after| record.fence > after));
        records.sort_unstable_by_key(|(_, record)| record.fence);
        let mut page = Page::default();
        for (id, record) in records {
            let Some(seen) = rules::view(Some(record), now) else { continue };
            page.examined += 1;
            let summary = Summary::new(id.clone(), seen);
            if !query.takes(&summary) {
                continue;
            }
            if page.items.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
                page.next = page.items.last().map(|last| Cursor(last.fence.get()));
                break;
            }
            page.items.push(summary);
        }
        Ok(page)
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let (mut shared, now) = self.enter();
        let fence = shared.next_fence()?;
        let found = shared.records.get(id);
        let (resolved, change) = rules::resolve(found, seen, resolution, fence, now);
        shared.settle(id, &change, None, now);
        shared.apply(id, change);
        if resolved == Resolved::Applied {
            shared.epoch += 1;
        }
        Ok(resolved)
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        let (mut shared, now) = self.enter();
        Ok(shared.upkeep(limit, now, |record| rules::reap(record, now)))
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let (mut shared, now) = self.enter();
        let rule = |record: &Record| {
            if rules::past_retention(record, now) { Change::Delete } else { Change::Keep }
        };
        shared.counters.retain(|_, counter| now < counter.expires_at());
        Ok(shared.upkeep(limit, now, rule))
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        Ok(Epoch(self.enter().0.epoch))
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        let (shared, _) = self.enter();
        let entries = shared.metadata.range(Box::from(prefix)..);
        let matching = entries.take_while(|(name, _)| name.starts_with(prefix));
        let first = matching.take(METADATA_ENTRIES_MAX);
        Ok(first.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        check_metadata(name, value)?;
        let (mut shared, _) = self.enter();
        match value {
            Some(value) => {
                shared.metadata.insert(name.into(), Bytes::copy_from_slice(value));
            }
            None => drop(shared.metadata.remove(name)),
        }
        Ok(())
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        usage.records = u64::try_from(self.enter().0.records.len()).ok();
        Ok(usage)
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(self.identity)
    }
}
