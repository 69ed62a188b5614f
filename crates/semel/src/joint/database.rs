//! What a database does for operations that are recorded together with what they write.

use std::{fmt::Debug, time::Duration};

use async_trait::async_trait;
use semel_core::{Answer, Batch, Fence, Fenced, Fingerprint, RecordId, StoreError};

/// A database whose transactions carry records, behind a [`JointStore`](super::JointStore).
///
/// Of all transactions that are open for one record, at most one is [free](Begun::Free), in however
/// many processes; it ends by [`commit`](Self::commit), by [`roll_back`](Self::roll_back), or by
/// being dropped, which rolls it back. Whoever dies with it open has rolled it back.
#[async_trait]
pub trait Database: Debug + Send + Sync + 'static {
    /// An open transaction, through which an operation writes. Dropping it undoes everything, and
    /// nobody else is ever given its connection with anything left open.
    type Transaction: Debug + Send + 'static;

    /// Opens a transaction for a record, or says what stands in its way. Never waits for somebody
    /// who runs the operation.
    async fn begin(&self, id: &RecordId) -> Result<Begun<Self::Transaction>, StoreError>;

    /// Undoes everything and begins anew, to record that nothing was done. Somebody else may come
    /// in between.
    async fn begin_again(
        &self,
        transaction: Self::Transaction,
        id: &RecordId,
    ) -> Result<Begun<Self::Transaction>, StoreError> {
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

    /// Undoes everything. An error need not be told: who is not heard of is rolled back.
    async fn roll_back(&self, transaction: Self::Transaction);

    /// What there is, without taking part.
    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError>;

    /// Deletes records past retention, at most `limit`.
    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError>;
}

/// A transaction that its user has opened, for [`Within`](super::Within).
///
/// It need not be `Send`, so that one whose driver blocks can be carried too: what blocks is done
/// when a method is called, and its future is ready.
pub trait Carrier {
    /// Takes the record for this transaction, or says what stands in the way. Does not wait.
    fn take(&mut self, id: &RecordId)
    -> impl Future<Output = Result<Begun<()>, StoreError>> + Send;

    /// Marks where the operation begins.
    fn mark(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets what was written since the mark stand, and forgets the mark.
    fn keep(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes what was written since the mark, and forgets the mark.
    fn undo(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds the record. It holds once its user commits.
    fn record(
        &mut self,
        entry: &Entry<'_>,
    ) -> impl Future<Output = Result<Fenced, StoreError>> + Send;
}

/// What somebody met who wants to run an operation.
#[derive(Debug)]
pub enum Begun<T> {
    /// Nobody else: run it.
    Free {
        /// The transaction, which is open.
        transaction: T,
        /// Its number, higher than that of every earlier one that wrote something.
        fence: Fence,
    },
    /// Somebody runs it.
    Running,
    /// It is done.
    Recorded(Recorded),
}

/// What somebody sees who only looks.
#[derive(Clone, Debug)]
pub enum Seen {
    /// No record, and nobody who runs it.
    Absent,
    /// Somebody runs it.
    Running,
    /// It is done.
    Recorded(Recorded),
}

/// A record that was read.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// What the operation meant.
    pub fingerprint: Fingerprint,
    /// The number of the transaction that ran it.
    pub fence: Fence,
    /// What it gave.
    pub answer: Answer,
    /// How long ago it was recorded.
    pub age: Duration,
    /// How long it will be kept.
    pub expires_in: Duration,
}

/// A record to be added.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// What it is remembered under.
    pub id: &'a RecordId,
    /// What the operation means.
    pub fingerprint: Fingerprint,
    /// The number of the transaction that ran it.
    pub fence: Fence,
    /// What it gave.
    pub answer: &'a Answer,
    /// How long it is kept.
    pub retention: Duration,
}
