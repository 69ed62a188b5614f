//! A store that fails on demand: unavailable, hanging, or losing its replies.

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
    RecordId, Resolution, Resolved, Snapshot, Store, StoreError, StoreErrorKind, StoreId, Usage,
};
use tokio::sync::watch;

/// The behaviour of a store call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCondition {
    /// It works.
    #[default]
    Available,
    /// It fails and changes nothing.
    Unavailable,
    /// It is applied, but the reply is lost.
    ReplyLost,
    /// It hangs until the condition changes; then it is applied.
    Hanging,
    /// It is applied, but the reply is delayed until the condition changes.
    ReplyDelayed,
    /// The reply to a granted claim is delayed until the condition changes; other replies are not.
    /// A database with a hanging synchronous standby behaves like this.
    GrantUnconfirmed,
    /// It fails with a busy store.
    Busy,
}

/// A kind of store call, with a condition and a count of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `claim`
    Claim,
    /// `renew`
    Renew,
    /// `finish`
    Finish,
    /// `get`
    Get,
    /// Everything else.
    Other,
}

const STORE_CALLS: usize = 5;

/// A wrapper that makes a store fail on demand and counts its calls. Clones share everything.
///
/// ```
/// # use semel_testkit::flaky_store::{FlakyStore, StoreCall, StoreCondition};
/// # fn example(store: impl semel_core::Store) {
/// let store = FlakyStore::new(store);
/// store.set(StoreCall::Claim, StoreCondition::Unavailable);
/// assert_eq!(store.count(StoreCall::Claim), 0);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FlakyStore {
    inner: Arc<dyn Store>,
    condition: Arc<watch::Sender<[StoreCondition; STORE_CALLS]>>,
    counts: Arc<[AtomicU64; STORE_CALLS]>,
}

impl FlakyStore {
    /// Wraps this store; every operation works until a condition is set.
    pub fn new(inner: impl Store) -> Self {
        Self { inner: Arc::new(inner), condition: Arc::default(), counts: Arc::default() }
    }

    /// Sets the condition of one kind of operation.
    pub fn set(&self, call: StoreCall, condition: StoreCondition) {
        self.condition.send_modify(|all| all[call as usize] = condition);
    }

    /// Sets the condition of every operation.
    pub fn set_all(&self, condition: StoreCondition) {
        self.condition.send_replace([condition; STORE_CALLS]);
    }

    /// Number of calls of this kind.
    #[must_use]
    pub fn count(&self, call: StoreCall) -> u64 {
        self.counts[call as usize].load(Ordering::SeqCst)
    }

    async fn apply_condition<T>(
        &self,
        call: StoreCall,
        operation: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.counts[call as usize].fetch_add(1, Ordering::SeqCst);
        let mut condition = self.condition.subscribe();
        let away = || StoreError::new(StoreErrorKind::Unavailable, "the store is unavailable");
        loop {
            let now = condition.borrow_and_update()[call as usize];
            match now {
                StoreCondition::Available | StoreCondition::GrantUnconfirmed => {
                    return operation.await;
                }
                StoreCondition::Unavailable => return Err(away()),
                StoreCondition::Busy => {
                    return Err(StoreError::new(StoreErrorKind::Busy, "too many wait"));
                }
                StoreCondition::ReplyLost => {
                    let _ = operation.await;
                    return Err(away().effect_unknown());
                }
                StoreCondition::ReplyDelayed => {
                    let answer = operation.await;
                    let _ = condition.changed().await;
                    return answer;
                }
                StoreCondition::Hanging => {
                    let _ = condition.changed().await;
                }
            }
        }
    }
}

#[async_trait]
impl Store for FlakyStore {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let claimed = self.apply_condition(StoreCall::Claim, self.inner.claim(claim)).await?;
        if matches!(claimed, Claimed::Granted(_)) {
            let is_confirmed = |all: &[StoreCondition; STORE_CALLS]| {
                all[StoreCall::Claim as usize] != StoreCondition::GrantUnconfirmed
            };
            let _ = self.condition.subscribe().wait_for(is_confirmed).await;
        }
        Ok(claimed)
    }

    fn has_limits(&self) -> bool {
        self.inner.has_limits()
    }

    async fn renew(
        &self,
        id: &RecordId,
        by: Claimant,
        lease: Duration,
    ) -> Result<Fenced, StoreError> {
        self.apply_condition(StoreCall::Renew, self.inner.renew(id, by, lease)).await
    }

    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        self.apply_condition(StoreCall::Finish, self.inner.finish(id, by, finish)).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        self.apply_condition(StoreCall::Get, self.inner.get(id)).await
    }

    async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.list(query)).await
    }

    async fn resolve(
        &self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.resolve(id, seen, resolution)).await
    }

    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.reap(limit)).await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.sweep(limit)).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.epoch()).await
    }

    async fn usage(&self) -> Result<Usage, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.usage()).await
    }

    async fn identity(&self) -> Result<Option<StoreId>, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.identity()).await
    }

    async fn metadata(&self, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.metadata(prefix)).await
    }

    async fn set_metadata(&self, name: &str, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.set_metadata(name, value)).await
    }

    async fn watch(&self, id: &RecordId) -> Result<Option<Changed>, StoreError> {
        self.apply_condition(StoreCall::Other, self.inner.watch(id)).await
    }
}
