//! A store that fails on demand: away, hanging, or answering into the void.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::{
    Batch, Changed, Claim, Claimant, Claimed, Epoch, Fence, Fenced, Finish, ListQuery, Page,
    RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind, StoreId,
};
use tokio::sync::watch;

/// What an operation on the store meets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weather {
    /// It works.
    #[default]
    Fair,
    /// It fails, and nothing was done.
    Away,
    /// It is done, but the answer is lost.
    Deaf,
    /// It hangs until the weather changes, and is done then.
    Stuck,
    /// It is done, but the answer comes only when the weather changes.
    Late,
    /// Too many claims wait.
    Busy,
}

/// A kind of operation, for setting its weather and for counting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// `claim`
    Claim,
    /// `renew`
    Renew,
    /// `finish`
    Record,
    /// `get`
    Get,
    /// Everything else.
    Other,
}

const VERBS: usize = 5;

/// A store in front of another that fails on demand and counts what it was asked. Clones share
/// everything.
///
/// ```
/// # use semel_testkit::unsteady::{Unsteady, Verb, Weather};
/// # fn example(store: impl semel_core::Store) {
/// let store = Unsteady::new(store);
/// store.set(Verb::Claim, Weather::Away);
/// assert_eq!(store.count(Verb::Claim), 0);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Unsteady {
    inner: Arc<dyn Store>,
    weather: Arc<watch::Sender<[Weather; VERBS]>>,
    counts: Arc<[AtomicU64; VERBS]>,
}

impl Unsteady {
    /// In front of this store, in fair weather.
    pub fn new(inner: impl Store) -> Self {
        Self { inner: Arc::new(inner), weather: Arc::default(), counts: Arc::default() }
    }

    /// From now on this kind of operation meets this weather.
    pub fn set(&self, verb: Verb, weather: Weather) {
        self.weather.send_modify(|all| all[verb as usize] = weather);
    }

    /// From now on everything meets this weather.
    pub fn set_all(&self, weather: Weather) {
        self.weather.send_replace([weather; VERBS]);
    }

    /// How often this kind of operation was asked for.
    #[must_use]
    pub fn count(&self, verb: Verb) -> u64 {
        self.counts[verb as usize].load(Ordering::SeqCst)
    }

    async fn meet<T>(
        &self,
        verb: Verb,
        operation: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.counts[verb as usize].fetch_add(1, Ordering::SeqCst);
        let mut weather = self.weather.subscribe();
        let away = || StoreError::new(StoreErrorKind::Unavailable, "the store is away");
        loop {
            let now = weather.borrow_and_update()[verb as usize];
            match now {
                Weather::Fair => return operation.await,
                Weather::Away => return Err(away()),
                Weather::Busy => {
                    return Err(StoreError::new(StoreErrorKind::Busy, "too many wait"));
                }
                Weather::Deaf => {
                    let _ = operation.await;
                    return Err(away().effect_unknown());
                }
                Weather::Late => {
                    let answer = operation.await;
                    let _ = weather.changed().await;
                    return answer;
                }
                Weather::Stuck => {
                    let _ = weather.changed().await;
                }
            }
        }
    }
}

#[async_trait]
impl Store for Unsteady {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        self.meet(Verb::Claim, self.inner.claim(claim)).await
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.meet(Verb::Renew, self.inner.renew(id, by, lease)).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        self.meet(Verb::Record, self.inner.finish(id, by, finish)).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.meet(Verb::Get, self.inner.get(id)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.meet(Verb::Other, self.inner.list(query)).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.meet(Verb::Other, self.inner.resolve(id, seen, resolution)).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.meet(Verb::Other, self.inner.reap(limit)).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.meet(Verb::Other, self.inner.sweep(limit)).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.meet(Verb::Other, self.inner.epoch()).await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        self.meet(Verb::Other, self.inner.identity()).await
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.meet(Verb::Other, self.inner.metadata(prefix)).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.meet(Verb::Other, self.inner.set_metadata(name, value)).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        self.meet(Verb::Other, self.inner.watch(id)).await
    }
}
