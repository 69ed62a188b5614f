//! The transactions that are open in this process, and how an operation gets at its own.

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

/// How long one part of an operation waits for another that uses their transaction.
const PATIENCE: Duration = Duration::from_secs(5);

/// All that is open, by what it is for.
#[derive(Debug)]
pub(super) struct Open<T>(sync::Mutex<HashMap<RecordId, Arc<Run<T>>>>);

/// One execution and its transaction.
#[derive(Debug)]
pub(super) struct Run<T> {
    pub(super) claim: Claim,
    pub(super) fence: Fence,
    /// The transaction, until it ends.
    pub(super) transaction: Arc<Mutex<Option<T>>>,
    /// Whether its writes are kept, where the operation has said so.
    pub(super) keep: Arc<OnceLock<bool>>,
    renewed: sync::Mutex<Instant>,
}

impl<T> Default for Open<T> {
    fn default() -> Self {
        Self(sync::Mutex::default())
    }
}

impl<T> Open<T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<RecordId, Arc<Run<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, claim: &Claim, fence: Fence, transaction: T) {
        let run = Run {
            claim: claim.clone(),
            fence,
            transaction: Arc::new(Mutex::new(Some(transaction))),
            keep: Arc::default(),
            renewed: sync::Mutex::new(Instant::now()),
        };
        self.lock().insert(claim.id.clone(), Arc::new(run));
    }

    pub(super) fn get(&self, id: &RecordId) -> Option<Arc<Run<T>>> {
        self.lock().get(id).cloned()
    }

    pub(super) fn with_fence(&self, id: &RecordId, fence: Fence) -> Option<Arc<Run<T>>> {
        self.get(id).filter(|run| run.fence == fence)
    }

    pub(super) fn with_claimant(&self, id: &RecordId, by: Claimant) -> Option<Arc<Run<T>>> {
        self.with_fence(id, by.fence).filter(|run| run.claim.owner == by.owner)
    }

    pub(super) fn of_owner(&self, id: &RecordId, owner: OwnerToken) -> Option<Arc<Run<T>>> {
        self.get(id).filter(|run| run.claim.owner == owner)
    }

    /// Those that nobody has renewed for as long as their lease.
    pub(super) fn lapsed(&self) -> Vec<Arc<Run<T>>> {
        self.lock().values().filter(|run| run.is_lapsed()).cloned().collect()
    }

    /// There is no such execution any more.
    pub(super) fn remove(&self, id: &RecordId, fence: Fence) {
        let mut runs = self.lock();
        if runs.get(id).is_some_and(|run| run.fence == fence) {
            runs.remove(id);
        }
    }
}

impl<T> Run<T> {
    fn renewed(&self) -> MutexGuard<'_, Instant> {
        self.renewed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn renew(&self) {
        *self.renewed() = Instant::now();
    }

    fn is_lapsed(&self) -> bool {
        self.renewed().elapsed() > self.claim.lease
    }

    /// The transaction, for the operation. Who waits for themselves does not wait for ever.
    pub(super) async fn lend(&self) -> Result<JointTransaction<T>, NoTransaction> {
        let mutex = || Arc::clone(&self.transaction);
        // Nobody else has it as a rule, and then no timer is needed.
        let guard = match mutex().try_lock_owned() {
            Ok(guard) => guard,
            Err(_) => timeout(PATIENCE, mutex().lock_owned()).await.map_err(|_| NoTransaction)?,
        };
        let transaction = OwnedMutexGuard::try_map(guard, Option::as_mut);
        let transaction = transaction.map_err(|_| NoTransaction)?;
        Ok(JointTransaction { transaction, keep: Arc::clone(&self.keep) })
    }
}

/// The transaction of an operation that runs: what is written through it is committed together with
/// the operation's answer.
///
/// It stands for the database's own connection. Drop it before the operation ends, because the
/// answer cannot be recorded while it is used; and do not commit through it.
pub struct JointTransaction<T> {
    transaction: OwnedMappedMutexGuard<Option<T>, T>,
    keep: Arc<OnceLock<bool>>,
}

impl<T> JointTransaction<T> {
    /// Commits what was written even if the operation ends with a refusal that is recorded: an
    /// attempt that was declined, say. Whichever of this and [`drop_writes`](Self::drop_writes) is
    /// said first holds.
    pub fn keep_writes(&self) {
        let _ = self.keep.set(true);
    }

    /// Rolls back what was written even if the operation ends well. Its answer is recorded.
    pub fn drop_writes(&self) {
        let _ = self.keep.set(false);
    }
}

impl<T> Deref for JointTransaction<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.transaction
    }
}

impl<T> DerefMut for JointTransaction<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.transaction
    }
}

impl<T> fmt::Debug for JointTransaction<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointTransaction").finish_non_exhaustive()
    }
}

/// Nothing is open for this operation: it has ended, it belongs to another store, it is not guarded
/// at all, or another part of it keeps the transaction to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no open transaction for this operation")]
pub struct NoTransaction;
