//! The store as its users see it: the one behind, with Redis in front.

use std::{sync::Arc, thread, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordAction, RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind,
    StoreId,
};
use tokio::{runtime::Builder, sync::oneshot, time::Instant};

use crate::{Counts, Options, core::Core, line::Line};

/// A store with Redis in front of it; see the [crate](crate).
#[derive(Debug)]
pub struct Front {
    core: Arc<Core>,
    /// Dropped with the front, and the thread that talks to Redis ends.
    _life: oneshot::Sender<()>,
}

impl Front {
    /// Puts Redis in front of a store.
    ///
    /// Redis need not be there: until it is, the store is asked.
    ///
    /// # Errors
    ///
    /// If the store cannot be asked, or has no identity by which its records could be told from
    /// those of others; or if the options cannot work, such as an authority that cannot be read.
    pub async fn connect(store: Arc<dyn Store>, options: Options) -> Result<Self, StoreError> {
        let unnamed = || {
            let message = "this store has no identity, so that a cache which others share would \
                           mix their records: use it without one";
            StoreError::new(StoreErrorKind::Unavailable, message)
        };
        let identity = store.identity().await?.ok_or_else(unnamed)?;
        let client = options.client()?;
        let core = Arc::new(Core::new(store, identity, &options));
        let line = Line::new(Arc::clone(&core), client, &options);
        let (life, mut end) = oneshot::channel();
        let impossible = |error| {
            let message = "the thread that talks to the cache cannot be started";
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        };
        // A thread and a runtime of its own: those of its users may end while others go on.
        let runtime = Builder::new_current_thread().enable_all().build().map_err(impossible)?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = &mut end => {}
                    () = line.run() => {}
                }
            });
            line.core().post.close();
            runtime.shutdown_background();
        };
        thread::Builder::new().name("semel-redis".into()).spawn(work).map_err(impossible)?;
        let front = Self { core, _life: life };
        front.epoch().await?;
        Ok(front)
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.counts()
    }
}

#[async_trait]
impl Store for Front {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let looking = self.core.post.is_open() && self.core.appetite.is_there();
        if looking && let Some(occupied) = self.core.look(claim).await {
            return Ok(Claimed::Occupied(occupied));
        }
        self.core.ask(claim, looking).await
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.core.store.renew(id, by, lease).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        // Both before the store answers: what is cached may be older than the record, never newer.
        let granted = self.core.ending(by);
        let fenced = self.core.store.finish(id, by, finish).await?;
        match (&finish.action, fenced) {
            (_, Fenced::Lost) => {}
            (RecordAction::Complete(answer), Fenced::Applied) => {
                self.core.completed(id, answer, granted);
            }
            (_, Fenced::Applied) => self.core.changed(id),
        }
        Ok(fenced)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.core.store.get(id).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.core.store.list(query).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        // Before as well: whoever asks may go away before the store has answered.
        self.core.acted(id);
        let resolved = self.core.store.resolve(id, seen, resolution).await;
        self.core.acted(id);
        resolved
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.core.store.reap(limit).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.core.store.sweep(limit).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        let asked = Instant::now();
        let epoch = self.core.store.epoch().await?;
        self.core.known.hear(epoch, asked);
        Ok(epoch)
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        Ok(Some(self.core.identity))
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.core.store.metadata(prefix).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.core.store.set_metadata(name, value).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        // A store that can tell tells everybody, by whichever gateway the end came.
        if let Some(changed) = self.core.store.watch(id).await? {
            return Ok(Some(changed));
        }
        Ok(self.core.watch(id).await)
    }
}
