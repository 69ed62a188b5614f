//! A store for the engine whose claims are open transactions and whose completions are commits.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use semel_core::{
    Answer, Batch, Claim, Claimant, Claimed, Content, Epoch, Fence, Fenced, Finish, Grant,
    ListQuery, Occupied, OnUnknown, Page, RecordAction, RecordId, Resolution, Resolved, Snapshot,
    StateView, Store, StoreError, StoreErrorKind, StoredResponse,
};

use tokio::time::timeout;

use super::{
    BeginResult, Database, Entry, NoTransaction, RecordLookup, Recorded, TransactionGuard,
    awaited::{AwaitedRecords, RECHECK_AFTER, running},
    open::{OpenTransaction, OpenTransactions},
};
use crate::Lease;

/// A store that records an operation by the same commit as the operation's own writes.
///
/// Clones share one store: give one to [`Semel::new`](crate::Semel::new), and keep one where
/// operations get their [transaction](Self::transaction).
///
/// Its records are rows of your own table. They are always completed: nothing is held, so there is
/// nothing to resolve, and you list records by a query. Deleting a row forgets the operation,
/// except where an engine still has its answer cached.
pub struct TransactionalStore<D: Database>(Arc<StoreShared<D>>);

#[derive(Debug)]
struct StoreShared<D: Database> {
    database: D,
    open: OpenTransactions<D::Transaction>,
    awaited: AwaitedRecords,
}

impl<D: Database> TransactionalStore<D> {
    /// A store on this database.
    pub fn new(database: D) -> Self {
        Self(Arc::new(StoreShared {
            database,
            open: OpenTransactions::default(),
            awaited: AwaitedRecords::default(),
        }))
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &D {
        &self.0.database
    }

    /// The transaction of the operation that runs under this lease.
    ///
    /// Each operation has one. A caller waits while another part of the operation uses it.
    ///
    /// # Errors
    ///
    /// If nothing is open for this lease.
    pub async fn transaction(
        &self,
        lease: &Lease,
    ) -> Result<TransactionGuard<D::Transaction>, NoTransaction> {
        let fence = lease.fence().ok_or(NoTransaction)?;
        let run = self.0.open.with_fence(lease.id(), fence).ok_or(NoTransaction)?;
        run.lock_transaction().await
    }
}

impl<D: Database> StoreShared<D> {
    async fn end(
        &self,
        run: &OpenTransaction<D::Transaction>,
        answer: &Answer,
    ) -> Result<Fenced, StoreError> {
        // Taken under the lock: a later caller finds none.
        let transaction = run.transaction.lock().await.take();
        let (id, fence) = (&run.claim.id, run.fence);
        self.open.remove(id, fence);
        let Some(transaction) = transaction else { return self.settle(id, fence, answer).await };
        let (fingerprint, retention) = (run.claim.fingerprint, run.claim.retention);
        let entry = Entry { id, fingerprint, fence, answer, retention };
        let keeps = match judged(answer) {
            WriteOutcome::Well => run.keep.get().copied().unwrap_or(true),
            WriteOutcome::Refused => run.keep.get().copied().unwrap_or(false),
            WriteOutcome::Failed => false,
        };
        if keeps {
            return self.database.commit(transaction, &entry).await;
        }
        // Another process may claim the record in between; nothing of this run is left then.
        match self.database.begin_again(transaction, id).await? {
            BeginResult::Free { transaction, .. } => {
                self.database.commit(transaction, &entry).await
            }
            BeginResult::Running | BeginResult::Recorded(_) => Ok(Fenced::Lost),
        }
    }

    /// The result of a commit whose reply was lost.
    async fn settle(
        &self,
        id: &RecordId,
        fence: Fence,
        answer: &Answer,
    ) -> Result<Fenced, StoreError> {
        match self.database.look_up(id).await? {
            RecordLookup::Recorded(found) if found.fence == fence && found.answer == *answer => {
                Ok(Fenced::Applied)
            }
            RecordLookup::Recorded(_) | RecordLookup::Absent => Ok(Fenced::Lost),
            // It may be this transaction, which is about to commit or to be rolled back.
            RecordLookup::Running => {
                let message = "the transaction has not ended yet";
                Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown())
            }
        }
    }

    /// The state of a running operation of this process or of another one.
    fn known(&self, id: &RecordId) -> Option<Snapshot> {
        let here = self.open.get(id).map(|run| running(run.claim.fingerprint, run.fence));
        here.or_else(|| self.awaited.get(id))
    }

    async fn undo(&self, id: &RecordId, by: Claimant) -> Fenced {
        if let Some(run) = self.open.with_claimant(id, by) {
            let transaction = run.transaction.lock().await.take();
            self.open.remove(id, by.fence);
            if let Some(transaction) = transaction {
                self.database.roll_back(transaction).await;
            }
        }
        // Without a transaction nothing was written.
        Fenced::Applied
    }
}

/// How an answer decides on the writes before it.
enum WriteOutcome {
    /// Committed, unless the operation decides otherwise.
    Well,
    /// Rolled back, unless the operation decides otherwise.
    Refused,
    /// Rolled back: the operation may have stopped at any point.
    Failed,
}

fn judged(answer: &Answer) -> WriteOutcome {
    match answer.read() {
        Ok(Content::Response(response)) if response.status < 400 && !is_grpc_error(&response) => {
            WriteOutcome::Well
        }
        Ok(Content::NotRetained { status }) if status < 400 => WriteOutcome::Well,
        Ok(Content::Response(_) | Content::NotRetained { .. }) => WriteOutcome::Refused,
        Ok(Content::Failed) | Err(_) => WriteOutcome::Failed,
    }
}

/// Every gRPC answer has the status 200. The gRPC status is in its trailers, or in its head for a
/// trailers-only response.
fn is_grpc_error(response: &StoredResponse) -> bool {
    let mut fields = response.trailers.iter().chain(&response.headers);
    fields.any(|field| *field.name == *b"grpc-status" && *field.value != *b"0")
}

fn snapshot(found: Recorded) -> Snapshot {
    let Recorded { answer, expires_in, .. } = found;
    let state = StateView::Completed { answer, expires_in };
    let mut seen = Snapshot::new(found.fingerprint, found.fence, state);
    seen.on_unknown = OnUnknown::Rerun;
    seen.age = found.age;
    seen
}

#[async_trait]
impl<D: Database> Store for TransactionalStore<D> {
    async fn claim(&self, claim: &Claim) -> Result<Claimed, StoreError> {
        let inner = &self.0;
        if claim.id.scope.is_observed() {
            let message = "an operation that is its own transaction cannot be observed beside it";
            return Err(StoreError::new(StoreErrorKind::ReadOnly, message));
        }
        if let Some(run) = inner.open.of_owner(&claim.id, claim.owner) {
            return Ok(Claimed::Granted(Grant::new(run.fence, 1)));
        }
        // Shorter than the caller's timeout: a pool without a free connection must not count as an
        // unknown effect.
        let begun = timeout(claim.lease / 4, inner.database.begin(&claim.id)).await;
        let begun = begun.unwrap_or_else(|_| {
            let message = "the database gives no connection in time: try again later";
            Err(StoreError::new(StoreErrorKind::Busy, message))
        });
        let begun = begun?;
        if matches!(begun, BeginResult::Recorded(_)) {
            inner.awaited.remove(&claim.id);
        }
        Ok(match begun {
            BeginResult::Free { transaction, fence } => {
                inner.open.put(claim, fence, transaction);
                inner.awaited.remove(&claim.id);
                Claimed::Granted(Grant::new(fence, 1))
            }
            BeginResult::Running => {
                inner.awaited.add(&claim.id, claim.fingerprint);
                Claimed::Occupied(Occupied::InFlight { lease_left: RECHECK_AFTER })
            }
            BeginResult::Recorded(found) if found.fingerprint != claim.fingerprint => {
                Claimed::Occupied(Occupied::FingerprintMismatch)
            }
            BeginResult::Recorded(Recorded { answer, expires_in, .. }) => {
                Claimed::Occupied(Occupied::Completed { answer, expires_in })
            }
        })
    }

    /// A transaction lasts as long as its connection. The lease finds transactions whose owner is
    /// gone.
    async fn renew(&self, id: &RecordId, by: Claimant, _: Duration) -> Result<Fenced, StoreError> {
        let open = self.0.open.with_claimant(id, by);
        Ok(open.map_or(Fenced::Lost, |run| {
            run.renew();
            Fenced::Applied
        }))
    }

    /// A rollback leaves nothing unknown, so nothing is held.
    async fn finish(
        &self,
        id: &RecordId,
        by: Claimant,
        finish: &Finish,
    ) -> Result<Fenced, StoreError> {
        let RecordAction::Complete(answer) = &finish.action else {
            return Ok(self.0.undo(id, by).await);
        };
        match self.0.open.with_claimant(id, by) {
            Some(run) => self.0.end(&run, answer).await,
            None => self.0.settle(id, by.fence, answer).await,
        }
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let inner = &self.0;
        if let Some(run) = inner.open.get(id) {
            return Ok(Some(running(run.claim.fingerprint, run.fence)));
        }
        match inner.database.look_up(id).await? {
            RecordLookup::Absent => {
                inner.awaited.remove(id);
                Ok(None)
            }
            RecordLookup::Recorded(found) => {
                inner.awaited.remove(id);
                Ok(Some(snapshot(found)))
            }
            RecordLookup::Running => inner.known(id).map(Some).ok_or_else(|| {
                let message = "another process runs it, and its fingerprint is not known";
                StoreError::new(StoreErrorKind::Busy, message)
            }),
        }
    }

    async fn list(&self, _: &ListQuery) -> Result<Page, StoreError> {
        let message = "these records are rows of your own table: list them there";
        Err(StoreError::new(StoreErrorKind::ReadOnly, message))
    }

    async fn resolve(
        &self,
        _: &RecordId,
        _: Fence,
        _: &Resolution,
    ) -> Result<Resolved, StoreError> {
        Ok(Resolved::Stale)
    }

    /// Rolls back transactions that are not renewed any more: their runtime has ended, and the
    /// store lives on.
    async fn reap(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut batch = Batch::default();
        for run in self.0.open.lapsed() {
            if batch.done >= limit {
                return Ok(Batch::new(batch.done, true));
            }
            // A transaction in use has a live owner.
            if let Ok(mut transaction) = run.transaction.try_lock() {
                self.0.open.remove(&run.claim.id, run.fence);
                if let Some(transaction) = transaction.take() {
                    self.0.database.roll_back(transaction).await;
                }
                batch.done += 1;
            }
        }
        Ok(batch)
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        self.0.database.sweep(limit).await
    }

    async fn epoch(&self) -> Result<Epoch, StoreError> {
        Ok(Epoch::default())
    }
}

impl<D: Database> Clone for TransactionalStore<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Database> fmt::Debug for TransactionalStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TransactionalStore").field(&self.0.database).finish()
    }
}

#[cfg(test)]
mod tests {
    use semel_core::Field;

    use super::*;

    #[test]
    fn a_refusal_is_known_by_its_status_also_by_that_of_grpc() {
        let grpc = |status: &'static str, in_head: bool| {
            let field = vec![Field::new("grpc-status", status)];
            let (headers, trailers) = if in_head { (field, vec![]) } else { (vec![], field) };
            let body = "".into();
            Answer::response(&StoredResponse { status: 200, headers, body, trailers })
        };
        let plain =
            |status| Answer::response(&StoredResponse { status, ..StoredResponse::default() });
        for well in [plain(201), plain(303), grpc("0", false), Answer::not_retained(200)] {
            assert!(matches!(judged(&well), WriteOutcome::Well), "{well:?}");
        }
        for refused in [plain(402), grpc("9", false), grpc("5", true), Answer::not_retained(422)] {
            assert!(matches!(judged(&refused), WriteOutcome::Refused), "{refused:?}");
        }
        assert!(matches!(judged(&Answer::failed()), WriteOutcome::Failed));
    }
}
