//! The harness of a case: a store whose errors are failures, and the values it is given.

use std::{
    collections::HashMap,
    fmt,
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_core::{
    About, Answer, Batch, Caller, Captured, Changed, Claim, Claimant, Claimed, Epoch, Fence,
    Fenced, Fingerprint, Finish, Grant, Key, ListQuery, NodeName, Occupied, OnUnknown, OwnerToken,
    Reason, RecordId, Release, Resolution, Resolved, Scope, Snapshot, StateView, Store,
    StoreErrorKind, StoreId, StoredResponse, Summary, Usage,
};

use crate::{
    fixture::{Durable, Fixture},
    with,
};

/// How long an owner of the kit may stay silent.
pub(crate) const LEASE: Duration = Duration::from_secs(10);
/// How long a finished record of the kit is kept.
pub(crate) const RETENTION: Duration = Duration::from_secs(100);
/// The smallest step of a store's clock.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Why a record of the kit was released, held or forgotten.
pub(crate) const RELEASED: Reason = Reason::Answered(429);
pub(crate) const HELD: Reason = Reason::ConnectionLost(312);
pub(crate) const FORGOTTEN: Reason = Reason::Answered(307);
/// Maintenance that does not end in this many batches does not end at all.
const BATCHES_MAX: u32 = 10_000;

/// A store under test.
pub struct StoreHarness {
    fixture: Box<dyn Fixture>,
    handle: Handle,
}

impl StoreHarness {
    /// Sets a case up.
    pub fn new(fixture: impl Fixture) -> Self {
        let handle = Handle::new(fixture.store());
        Self { fixture: Box::new(fixture), handle }
    }

    /// A handle for a task of its own.
    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Another process's handle.
    pub(crate) async fn another(&self) -> Handle {
        self.handle.beside(self.fixture.another().await)
    }

    /// Lets time pass.
    pub(crate) async fn advance(&self, by: Duration) {
        self.fixture.advance(by).await;
    }
}

impl fmt::Debug for StoreHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreHarness").field(&self.handle).finish()
    }
}

impl Deref for StoreHarness {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

/// A store under test that can be ended and opened again. It keeps no handle itself.
pub struct DurableHarness {
    fixture: Box<dyn Durable>,
    owners: OwnerTokens,
}

impl DurableHarness {
    /// Sets a case up.
    pub fn new(fixture: impl Durable) -> Self {
        Self { fixture: Box::new(fixture), owners: OwnerTokens::default() }
    }

    pub(crate) fn open(&self) -> Handle {
        Handle::with_owners(self.fixture.store(), &self.owners)
    }

    /// Ends the store and opens it again; the handle goes first.
    pub(crate) async fn reopen(&self, handle: Handle) -> Handle {
        drop(handle);
        self.fixture.reopen().await;
        self.open()
    }

    /// Lets time pass.
    pub(crate) async fn advance(&self, by: Duration) {
        self.fixture.advance(by).await;
    }
}

impl fmt::Debug for DurableHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DurableBench")
    }
}

/// A handle to a store. A case expects no errors, so every method unwraps.
#[derive(Clone, Debug)]
pub struct Handle {
    store: Arc<dyn Store>,
    owners: OwnerTokens,
}

/// The owner token of each grant, so that a case need not carry it beside the fence.
pub(crate) type OwnerTokens = Arc<Mutex<HashMap<(RecordId, Fence), OwnerToken>>>;

impl Handle {
    /// Any handle of a fixture.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, owners: OwnerTokens::default() }
    }

    /// A handle that knows these owners.
    pub(crate) fn with_owners(store: Arc<dyn Store>, owners: &OwnerTokens) -> Self {
        Self { store, owners: Arc::clone(owners) }
    }

    /// Another handle that knows the same owners.
    pub fn beside(&self, store: Arc<dyn Store>) -> Self {
        Self::with_owners(store, &self.owners)
    }

    /// Whether claims may have limits.
    pub(crate) fn has_limits(&self) -> bool {
        self.store.has_limits()
    }

    /// Claims a record.
    pub async fn claim(&self, claim: &Claim) -> Claimed {
        let claimed = self.store.claim(claim).await.expect("claim");
        if let Claimed::Granted(grant) = &claimed {
            let mut owners = self.owners.lock().unwrap();
            owners.insert((claim.id.clone(), grant.fence), claim.owner);
        }
        claimed
    }

    /// The owner that was granted this fence. A fence that was not granted has its own owner.
    pub fn claimant(&self, id: &RecordId, fence: Fence) -> Claimant {
        let known = self.owners.lock().unwrap().get(&(id.clone(), fence)).copied();
        Claimant::new(fence, known.unwrap_or_else(owner))
    }

    /// A claim that must be granted.
    #[track_caller]
    pub(crate) fn granted(&self, claim: &Claim) -> impl Future<Output = Grant> + Send {
        let (handle, claim) = (self.clone(), claim.clone());
        async move {
            match handle.claim(&claim).await {
                Claimed::Granted(grant) => grant,
                Claimed::Occupied(occupied) => panic!("{} is not granted: {occupied:?}", claim.id),
            }
        }
    }

    /// A claim that must not be granted.
    pub(crate) async fn occupied(&self, claim: &Claim) -> Occupied {
        match self.claim(claim).await {
            Claimed::Occupied(occupied) => occupied,
            Claimed::Granted(grant) => panic!("{} is granted: {grant:?}", claim.id),
        }
    }

    pub(crate) async fn renew(&self, id: &RecordId, fence: Fence, lease: Duration) -> Fenced {
        self.renew_by(id, self.claimant(id, fence), lease).await
    }

    /// Renews a lease.
    pub async fn renew_by(&self, id: &RecordId, by: Claimant, lease: Duration) -> Fenced {
        self.store.renew(id, by, lease).await.expect("renew")
    }

    pub(crate) async fn finish(&self, id: &RecordId, fence: Fence, finish: &Finish) -> Fenced {
        self.finish_by(id, self.claimant(id, fence), finish).await
    }

    /// Ends an execution.
    pub async fn finish_by(&self, id: &RecordId, by: Claimant, finish: &Finish) -> Fenced {
        self.store.finish(id, by, finish).await.expect("finish")
    }

    pub(crate) async fn complete(&self, id: &RecordId, fence: Fence, answer: &Answer) -> Fenced {
        self.finish(id, fence, &Finish::complete(answer.clone())).await
    }

    pub(crate) async fn release(&self, id: &RecordId, fence: Fence, release: Release) -> Fenced {
        self.finish(id, fence, &Finish::release(release, RELEASED)).await
    }

    pub(crate) async fn hold(&self, id: &RecordId, fence: Fence) -> Fenced {
        self.finish(id, fence, &Finish::hold(HELD)).await
    }

    pub(crate) async fn forget(&self, id: &RecordId, fence: Fence) -> Fenced {
        self.finish(id, fence, &Finish::forget(FORGOTTEN)).await
    }

    /// Reads a record.
    pub async fn get(&self, id: &RecordId) -> Option<Snapshot> {
        self.store.get(id).await.expect("get")
    }

    /// A record that must be there.
    pub(crate) async fn seen(&self, id: &RecordId) -> Snapshot {
        self.get(id).await.unwrap_or_else(|| panic!("{id} is absent"))
    }

    /// Decides about a record, as an operator does.
    pub async fn resolve(&self, id: &RecordId, seen: Fence, resolution: &Resolution) -> Resolved {
        self.store.resolve(id, seen, resolution).await.expect("resolve")
    }

    /// The epoch.
    pub async fn epoch(&self) -> Epoch {
        self.store.epoch().await.expect("epoch")
    }

    /// Metadata below a prefix, as owned values.
    pub(crate) async fn metadata(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        let entries = self.store.metadata(prefix).await.expect("metadata");
        entries.into_iter().map(|(name, value)| (name.into(), value.to_vec())).collect()
    }

    pub(crate) async fn set_metadata(&self, name: &str, value: Option<&[u8]>) {
        self.store.set_metadata(name, value).await.expect("set_metadata");
    }

    /// An entry that must not be taken.
    pub(crate) async fn metadata_refused(&self, name: &str, value: &[u8]) {
        let error = self.store.set_metadata(name, Some(value)).await.expect_err("it is too long");
        assert_eq!(error.kind(), StoreErrorKind::TooLarge);
    }

    pub(crate) async fn usage(&self) -> Usage {
        self.store.usage().await.expect("usage")
    }

    pub(crate) async fn identity(&self) -> Option<StoreId> {
        self.store.identity().await.expect("identity")
    }

    pub(crate) async fn watch(&self, id: &RecordId) -> Option<Changed> {
        self.store.watch(id).await.expect("watch")
    }

    pub(crate) async fn reap(&self, limit: u32) -> Batch {
        self.store.reap(limit).await.expect("reap")
    }

    pub(crate) async fn sweep(&self, limit: u32) -> Batch {
        self.store.sweep(limit).await.expect("sweep")
    }

    /// Reaps to the end and says how many records moved.
    pub async fn reap_all(&self) -> u32 {
        let mut done = 0;
        for _ in 0..BATCHES_MAX {
            let batch = self.reap(100).await;
            done += batch.done;
            if !batch.more {
                return done;
            }
        }
        panic!("reaping does not end");
    }

    /// Sweeps to the end and says how many records went.
    pub async fn sweep_all(&self) -> u32 {
        let mut done = 0;
        for _ in 0..BATCHES_MAX {
            let batch = self.sweep(100).await;
            done += batch.done;
            if !batch.more {
                return done;
            }
        }
        panic!("sweeping does not end");
    }

    /// One page.
    pub(crate) async fn page(&self, query: &ListQuery) -> semel_core::Page {
        let page = self.store.list(query).await.expect("list");
        let size = usize::try_from(query.page_size()).unwrap();
        assert!(page.items.len() <= size, "a page of {} has {}", size, page.items.len());
        page
    }

    /// All pages, in the order of their records.
    pub async fn list(&self, query: &ListQuery) -> Vec<Summary> {
        let (mut query, mut items) = (query.clone(), Vec::new());
        for _ in 0..BATCHES_MAX {
            let page = self.page(&query).await;
            items.extend(page.items);
            query.after = page.next;
            if query.after.is_none() {
                items.sort_by(|a: &Summary, b| a.id.cmp(&b.id));
                return items;
            }
        }
        panic!("the pages do not end");
    }
}

// === values ===

/// A claim of a key with everything a case does not care about. Each has an owner token of its own.
pub(crate) fn claim(key: &str) -> Claim {
    with(Claim::new(id("conform", "caller", key), fingerprint(1), owner()), |claim| {
        claim.lease = LEASE;
        claim.retention = RETENTION;
        claim.on_unknown = OnUnknown::Hold;
        claim.about = About::new("POST shop.example/charges");
        claim.node = NodeName::new("node-1");
        claim.captured = Captured::new([("order", "o-1"), ("amount", "12.50")]);
    })
}

/// The same request by another owner.
pub(crate) fn rival(claim: &Claim) -> Claim {
    with(claim.clone(), |it| it.owner = owner())
}

/// Another request under the same key.
pub(crate) fn impostor(claim: &Claim) -> Claim {
    with(claim.clone(), |it| {
        it.owner = owner();
        it.fingerprint = fingerprint(2);
    })
}

/// The name of a record.
pub fn id(scope: &str, caller: &str, key: &str) -> RecordId {
    RecordId::new(
        Scope::new(scope).unwrap(),
        Caller::from_stored(caller).unwrap(),
        Key::new(key).unwrap(),
    )
}

/// A fingerprint of this number.
pub fn fingerprint(number: u8) -> Fingerprint {
    let mut bytes = [number; 33];
    bytes[0] = 1;
    Fingerprint::try_from(bytes.as_slice()).unwrap()
}

/// A token that no other claim of this run carries. It differs in its last bytes only, so that a
/// store that compares less than all of it is found.
pub(crate) fn owner() -> OwnerToken {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&DRAWN.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    OwnerToken::from_bytes(bytes)
}

/// An answer with this body.
pub fn answer(body: &str) -> Answer {
    let body = body.to_owned().into();
    Answer::response(&StoredResponse { status: 201, body, ..StoredResponse::default() })
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The record of a claim that was granted just now.
pub(crate) fn claimed(claim: &Claim, fence: Fence, state: StateView) -> Snapshot {
    with(Snapshot::new(claim.fingerprint, fence, state), |seen| {
        seen.on_unknown = claim.on_unknown;
        seen.hold_for = claim.hold_for;
        seen.about = claim.about.clone();
        seen.node = claim.node.clone();
        seen.captured = claim.captured.clone();
    })
}
