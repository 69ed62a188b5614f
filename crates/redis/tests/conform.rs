//! Runs the conformance kit on a store with Redis in front.
//!
//! The kit does not wait a second for an operator's act to be followed, so its fronts read the
//! epoch before each claim. On its clock there are no hints, because they may be late.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use semel::{
    MemoryStore,
    core::{
        Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
        RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreId, Usage,
    },
};
use semel_redis::{Options, RedisCache};
use semel_testkit::{clock::ManualClock, fixture::Fixture, servers::Redis};

/// One server for all cases: each has its own store, and so its own names.
fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(Redis::start)
}

struct CachedFixture {
    behind: MemoryStore,
    options: Options,
    front: Arc<dyn Store>,
    clock: ManualClock,
}

impl CachedFixture {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(set: impl FnOnce(Options) -> Options) -> Self {
        let clock = ManualClock::new();
        let behind = MemoryStore::with_clock(clock.reader());
        let options = set(Options::parse(&redis().url()).unwrap().on_clock(clock.reader()));
        let front = connect_fresh(&behind, &options).await;
        Self { behind, options, front, clock }
    }
}

async fn connect_fresh(behind: &MemoryStore, options: &Options) -> Arc<dyn Store> {
    let front = RedisCache::connect(Arc::new(behind.clone()), options.clone()).await.unwrap();
    while !front.counts().connected {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Arc::new(FreshEpochCache(front))
}

#[async_trait]
impl Fixture for CachedFixture {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.front)
    }

    async fn another(&self) -> Arc<dyn Store> {
        connect_fresh(&self.behind, &self.options).await
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

/// A front that reads the store's epoch before each claim.
#[derive(Debug)]
struct FreshEpochCache(RedisCache);

#[async_trait]
impl Store for FreshEpochCache {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.0.epoch().await?;
        self.0.claim(claim).await
    }

    fn has_limits(&self) -> bool {
        self.0.has_limits()
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.0.renew(id, by, lease).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        self.0.finish(id, by, finish).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.0.get(id).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.0.list(query).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.0.resolve(id, seen, resolution).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.0.reap(limit).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.0.sweep(limit).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.0.epoch().await
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.0.usage().await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        self.0.identity().await
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.0.metadata(prefix).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.0.set_metadata(name, value).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        self.0.watch(id).await
    }
}

semel_testkit::conform!(volatile, CachedFixture::new().await);
// Histories claim with one owner token again and again.
semel_testkit::torture_histories!(CachedFixture::with(Options::cache_on_claim_only).await, 500);
