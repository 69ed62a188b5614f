//! The interface of a database that records operations together with their writes.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use semel_core::{Answer, Batch, Fence, Fenced, Fingerprint, RecordId, StoreError};

/// A database whose transactions carry records, behind a
/// [`TransactionalStore`](super::TransactionalStore).
///
/// Of all transactions that are open for one record, in all processes, at most one is
/// [free](BeginResult::Free). It ends by [`commit`](Self::commit), by
/// [`roll_back`](Self::roll_back), or by being dropped, which rolls it back. A crash of its process
/// rolls it back too.
#[async_trait]
pub trait Database: Debug + Send + Sync + 'static {
    /// An open transaction, through which an operation writes. Dropping it rolls back. Its
    /// connection is never reused with anything left open.
    type Transaction: Debug + Send + 'static;

    /// Opens a transaction for a record, or returns what prevents it. It never waits for a running
    /// operation.
    async fn begin(&self, id: &RecordId) -> Result<BeginResult<Self::Transaction>, StoreError>;

    /// Rolls back and begins a new transaction, to record that nothing was done. Another process
    /// may claim the record in between.
    async fn begin_again(
        &self,
        transaction: Self::Transaction,
        id: &RecordId,
    ) -> Result<BeginResult<Self::Transaction>, StoreError> {
        self.roll_back(transaction).await;
        self.begin(id).await
    }

    /// Adds the record and commits. [`Fenced::Lost`] if there is a record by now, or if the
    /// transaction is not the one that was begun any more; then everything is rolled back.
    ///
    /// An error says whether the commit may have happened.
    async fn commit(
        &self,
        transaction: Self::Transaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError>;

    /// Rolls back. An error can be ignored: a lost connection is rolled back too.
    async fn roll_back(&self, transaction: Self::Transaction);

    /// Reads the state of a record without claiming it.
    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError>;

    /// Deletes records past retention, at most `limit`.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError>;
}

/// A transaction that the user has opened, for [`InTransaction`](super::InTransaction).
///
/// It need not be `Send`, to support blocking drivers: they block when a method is called, and the
/// returned future is ready.
pub trait UserTransaction {
    /// Claims the record for this transaction, or returns what prevents it. It does not wait.
    fn take(
        &mut self,
        id: &RecordId,
    ) -> impl Future<Output = Result<BeginResult<()>, StoreError>> + Send;

    /// Sets a savepoint where the operation begins.
    fn mark(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Releases the savepoint and keeps the writes since.
    fn keep(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls back to the savepoint and releases it.
    fn undo(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds the record. It becomes durable when the user commits.
    fn record(
        &mut self,
        entry: &Entry<'_>,
    ) -> impl Future<Output = Result<Fenced, StoreError>> + Send;
}

/// The result of claiming an operation.
#[derive(Debug)]
pub enum BeginResult<T> {
    /// The operation is free: run it.
    Free {
        /// The open transaction.
        transaction: T,
        /// Its fence, higher than that of every earlier transaction that wrote something.
        fence: Fence,
    },
    /// Another transaction runs it.
    Running,
    /// It is completed.
    Recorded(Recorded),
}

/// The state of a record, as read without a claim.
#[derive(Clone, Debug)]
pub enum RecordLookup {
    /// No record, and no transaction that runs it.
    Absent,
    /// A transaction runs it.
    Running,
    /// It is completed.
    Recorded(Recorded),
}

/// A record that was read.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The fingerprint of the operation.
    pub fingerprint: Fingerprint,
    /// The fence of the transaction that ran it.
    pub fence: Fence,
    /// Its answer.
    pub answer: Answer,
    /// How long ago it was recorded.
    pub age: Duration,
    /// The rest of its retention.
    pub expires_in: Duration,
}

/// A record to be added.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The record's identity.
    pub id: &'a RecordId,
    /// The fingerprint of the operation.
    pub fingerprint: Fingerprint,
    /// The fence of the transaction that ran it.
    pub fence: Fence,
    /// Its answer.
    pub answer: &'a Answer,
    /// Its retention.
    pub retention: Duration,
}
