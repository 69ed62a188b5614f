//! The public store: another store with Redis in front.

use std::{sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind,
    StoreId, Usage,
};
use tokio::{runtime::Builder, sync::oneshot, time::Instant};

use crate::{CacheCounts, Options, connection::RedisConnection, lookup::CacheState};

/// A store with Redis in front of it; see the [crate](crate).
#[derive(Debug)]
pub struct RedisCache {
    cache: Arc<CacheState>,
    /// Dropped with the front, which ends the connection thread.
    _shutdown: oneshot::Sender<()>,
}

impl RedisCache {
    /// Puts Redis in front of a store.
    ///
    /// Redis need not be reachable: until it is, all requests go to the store.
    ///
    /// # Errors
    ///
    /// If the store fails, or has no identity to separate its records from those of other stores;
    /// or if the options are invalid, such as an unreadable certificate authority.
    pub async fn connect(store: Arc<dyn Store>, options: Options) -> Result<Self, StoreError> {
        let unnamed = || {
            let message = "this store has no identity, so that a cache which others share would \
                           mix their records: use it without one";
            StoreError::new(StoreErrorKind::Unavailable, message)
        };
        let identity = store.identity().await?.ok_or_else(unnamed)?;
        let client = options.client()?;
        let cache = Arc::new(CacheState::new(store, identity, &options));
        let connection = RedisConnection::new(Arc::clone(&cache), client, &options);
        let (shutdown, mut shutdown_signal) = oneshot::channel();
        let impossible = |error| {
            let message = "the thread that talks to the cache cannot be started";
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        };
        // Its own thread and runtime: a runtime of its users may end before the others.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(impossible)?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = &mut shutdown_signal => {}
                    () = connection.run() => {}
                }
            });
            connection.cache().requests.close();
            runtime.shutdown_background();
        };
        thread::Builder::new().name("semel-redis".into()).spawn(work).map_err(impossible)?;
        let front = Self { cache, _shutdown: shutdown };
        front.epoch().await?;
        Ok(front)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        self.cache.counts()
    }
}

#[async_trait]
impl Store for RedisCache {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let looking = self.cache.requests.is_open() && self.cache.lookup_budget.allows_lookup();
        if looking && let Some(occupied) = self.cache.lookup(claim).await {
            return Ok(Claimed::Occupied(occupied));
        }
        self.cache.claim_in_store(claim, looking).await
    }

    fn has_limits(&self) -> bool {
        self.cache.store.has_limits()
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.cache.store.renew(id, by, lease).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        // Before the store replies: what is cached may be older than the record, never newer.
        let granted = self.cache.take_granted(by);
        let fenced = self.cache.store.finish(id, by, finish).await?;
        match (&finish.action, fenced) {
            (_, Fenced::Lost) => {}
            (RecordAction::Complete(answer), Fenced::Applied) => {
                self.cache.on_completed(id, answer, granted);
            }
            (_, Fenced::Applied) => self.cache.changed(id),
        }
        Ok(fenced)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.cache.store.get(id).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.cache.store.list(query).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        // Before as well: the caller may go away before the store has replied.
        self.cache.on_operator_act(id);
        let resolved = self.cache.store.resolve(id, seen, resolution).await;
        self.cache.on_operator_act(id);
        resolved
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.cache.store.reap(limit).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.cache.store.sweep(limit).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        let asked = Instant::now();
        let epoch = self.cache.store.epoch().await?;
        self.cache.epoch_cache.update(epoch, asked);
        Ok(epoch)
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.cache.store.usage().await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(Some(self.cache.identity))
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.cache.store.metadata(prefix).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.cache.store.set_metadata(name, value).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        // A store with notifications notifies all gateways.
        if let Some(changed) = self.cache.store.watch(id).await? {
            return Ok(Some(changed));
        }
        Ok(self.cache.watch(id).await)
    }
}
