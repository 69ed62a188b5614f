//! The open transactions of this process, and how an operation reaches its own.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::{self, Arc, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use hashbrown::HashMap;
use semel_core::{Claim, Claimant, Fence, OwnerToken, RecordId};
use tokio::{
    sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard},
    time::{Instant, timeout},
};

/// How long one part of an operation waits for another part that uses the transaction.
const TRANSACTION_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// All open transactions by record.
#[derive(Debug)]
pub(super) struct OpenTransactions<T>(sync::Mutex<HashMap<RecordId, Arc<OpenTransaction<T>>>>);

/// One execution and its transaction.
#[derive(Debug)]
pub(super) struct OpenTransaction<T> {
    pub(super) claim: Claim,
    pub(super) fence: Fence,
    /// The transaction, until it ends.
    pub(super) transaction: Arc<Mutex<Option<T>>>,
    /// Whether its writes are kept, if the operation has set it.
    pub(super) keep: Arc<OnceLock<bool>>,
    renewed: sync::Mutex<Instant>,
}

impl<T> Default for OpenTransactions<T> {
    fn default() -> Self {
        Self(sync::Mutex::default())
    }
}

impl<T> OpenTransactions<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Arc<OpenTransaction<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, claim: &Claim, fence: Fence, transaction: T) {
        let run = OpenTransaction {
            claim: claim.clone(),
            fence,
            transaction: Arc::new(Mutex::new(Some(transaction))),
            keep: Arc::default(),
            renewed: sync::Mutex::new(Instant::now()),
        };
        self.lock().insert(claim.id.clone(), Arc::new(run));
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<Arc<OpenTransaction<T>>> {
        self.lock().get(id).cloned()
    }

    pub(super) fn with_fence(
        &self,
        id: &RecordId,
        fence: Fence,
    ) -> Option<Arc<OpenTransaction<T>>> {
        self.get(id).filter(|run| run.fence == fence)
    }

    pub(super) fn with_claimant(
        &self,
        id: &RecordId,
        by: Claimant,
    ) -> Option<Arc<OpenTransaction<T>>> {
        self.with_fence(id, by.fence).filter(|run| run.claim.owner == by.owner)
    }

    pub(super) fn of_owner(
        &self,
        id: &RecordId,
        owner: OwnerToken,
    ) -> Option<Arc<OpenTransaction<T>>> {
        self.get(id).filter(|run| run.claim.owner == owner)
    }

    /// Transactions that were not renewed within their lease.
    pub(super) fn lapsed(&self) -> Vec<Arc<OpenTransaction<T>>> {
        self.lock().values().filter(|run| run.is_lapsed()).cloned().collect()
    }

    /// Removes an execution that has ended.
    pub(super) fn remove(&self, id: &RecordId, fence: Fence) {
        let mut runs = self.lock();
        if runs.get(id).is_some_and(|run| run.fence == fence) {
            runs.remove(id);
        }
    }
}

impl<T> OpenTransaction<T> {
    fn renewed(&self) -> MutexGuard<'_, Instant> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn renew(&self) {
        *self.renewed() = Instant::now();
    }

    fn is_lapsed(&self) -> bool {
        self.renewed().elapsed() > self.claim.lease
    }

    /// The transaction, for the operation. A timeout ends a deadlock of the operation with itself.
    pub(super) async fn lock_transaction(&self) -> Result<TransactionGuard<T>, NoTransaction> {
        let mutex = || Arc::clone(&self.transaction);
        // Usually it is uncontended, and then no timer is needed.
        let guard = match mutex().try_lock_owned() {
            Ok(guard) => guard,
            Err(_) => timeout(TRANSACTION_LOCK_TIMEOUT, mutex().lock_owned())
                .await
                .map_err(|_| NoTransaction)?,
        };
        let transaction = OwnedMutexGuard::try_map(guard, Option::as_mut);
        let transaction = transaction.map_err(|_| NoTransaction)?;
        Ok(TransactionGuard { transaction, keep: Arc::clone(&self.keep) })
    }
}

/// The transaction of a running operation: its writes are committed together with the operation's
/// answer.
///
/// It dereferences to the database's own connection. Drop it before the operation ends, because the
/// answer cannot be recorded while it is in use. Do not commit through it.
pub struct TransactionGuard<T> {
    transaction: OwnedMappedMutexGuard<Option<T>, T>,
    keep: Arc<OnceLock<bool>>,
}

impl<T> TransactionGuard<T> {
    /// Commits the writes even if the operation ends with a recorded refusal, to keep a declined
    /// attempt for example. The first call of this and [`drop_writes`](Self::drop_writes) wins.
    pub fn keep_writes(&self) {
        let _ = self.keep.set(true);
    }

    /// Rolls the writes back even if the operation succeeds. Its answer is recorded.
    pub fn drop_writes(&self) {
        let _ = self.keep.set(false);
    }
}

impl<T> Deref for TransactionGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.transaction
    }
}

impl<T> DerefMut for TransactionGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.transaction
    }
}

impl<T> fmt::Debug for TransactionGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionGuard").finish_non_exhaustive()
    }
}

/// No transaction is open for this operation: it has ended, it belongs to another store, it is not
/// guarded, or another part of it keeps the transaction in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no open transaction for this operation")]
pub struct NoTransaction;
