//! An operation under a key, inside a transaction that its caller has opened.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use semel_core::{Caller, Fenced, Fingerprint, Key, Policy, RecordId, Scope, StoreError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{BeginResult, Entry, INBOX_RETENTION, UserTransaction};
use crate::{
    OnceError, OnceErrorKind, OperationError, Outcome,
    once::{
        self,
        end::{self, TransactionEnd},
    },
};

const BACKOFF_MIN: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Runs an operation once per key, inside a transaction that the caller has opened and will commit.
///
/// The record is one more row of that transaction: it becomes durable when the caller commits, and
/// disappears if the caller rolls back or crashes. The operation itself runs behind a savepoint:
///
/// | the operation returns | its writes | the record | the outcome |
/// |---|---|---|---|
/// | a value | stay | added | [`Outcome::Ran`] |
/// | [`OperationError::refused`] | undone, or [kept] | added | [`Outcome::Refused`] |
/// | [`OperationError::retry`], or `?` on any error | undone | none | [`Outcome::Retry`] |
///
/// [kept]: Self::keep_refused_writes
///
/// `Replayed`, `KeyReused` and `InProgress` are the only other outcomes.
///
/// # The cost of waiting
///
/// While another transaction runs the same operation, this one waits and holds its connection, its
/// locks and its snapshot. So it waits for at most two seconds unless [`wait`](Self::wait) is set;
/// then it returns [`Outcome::InProgress`], and the transaction stays usable. Make this call before
/// you take any lock. Where many repeats are expected, let the engine open the transaction instead:
/// on a [`TransactionalStore`](super::TransactionalStore), waiters hold no connection.
#[derive(Debug)]
#[must_use]
pub struct InTransaction {
    scope: Scope,
    caller: Caller,
    key: Key,
    fingerprint: Result<Fingerprint, OnceError>,
    retention: Duration,
    wait: Duration,
    keep_refused_writes: bool,
}

impl InTransaction {
    /// An operation with this scope, caller and key.
    pub fn new(scope: Scope, caller: Caller, key: Key) -> Self {
        Self {
            scope,
            caller,
            key,
            fingerprint: once::fingerprint(&()),
            retention: Policy::default().retention,
            wait: Duration::from_secs(2),
            keep_refused_writes: false,
        }
    }

    /// The processing of a message: `source` is where messages come from, and `id` is assigned by
    /// the sender. The caller is anonymous, the record is kept for [`INBOX_RETENTION`], and there
    /// is no fingerprint, because the id identifies the message and a redelivery may carry
    /// additional fields.
    ///
    /// Let the layer of `semel-tower` receive webhooks under a source of its own: a record of one
    /// is [`Outcome::KeyReused`] for the other.
    pub fn message(source: Scope, id: Key) -> Self {
        Self::new(source, Caller::anonymous(), id).retention(INBOX_RETENTION)
    }

    /// Sets the fingerprint. A repeat with another one gets [`Outcome::KeyReused`]. See
    /// [`Once::fingerprint`](crate::Once::fingerprint) for pitfalls.
    pub fn fingerprint<V: Serialize + ?Sized>(mut self, meaning: &V) -> Self {
        self.fingerprint = once::fingerprint(meaning);
        self
    }

    /// How long the record is kept; 24 hours unless set.
    pub const fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long to wait for another transaction that runs it; two seconds unless set.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Keeps the writes of a refused operation, such as a declined attempt.
    pub const fn keep_refused_writes(mut self) -> Self {
        self.keep_refused_writes = true;
        self
    }

    /// Runs the operation unless it ran before.
    ///
    /// If its future is dropped, by a timeout for example, or a panic of the operation is caught,
    /// the caller must roll back: the writes so far are not recorded.
    ///
    /// # Errors
    ///
    /// If the database fails, or a recorded value cannot be read. After a failure of the database,
    /// roll back.
    pub async fn run<C, O, T>(
        self,
        user_transaction: &mut C,
        operation: O,
    ) -> Result<Outcome<T>, OnceError>
    where
        C: UserTransaction,
        O: AsyncFnOnce(&mut C) -> Result<T, OperationError>,
        T: Serialize + DeserializeOwned,
    {
        let fingerprint = self.fingerprint?;
        let id = RecordId::new(self.scope, self.caller, self.key);
        let fence = match take(user_transaction, &id, self.wait).await? {
            BeginResult::Free { fence, .. } => fence,
            BeginResult::Running => return Ok(Outcome::InProgress),
            BeginResult::Recorded(found) if found.fingerprint != fingerprint => {
                return Ok(Outcome::KeyReused);
            }
            BeginResult::Recorded(found) => return end::replayed(&found.answer),
        };
        user_transaction.mark().await.map_err(unavailable)?;
        let ended = operation(user_transaction).await;
        match TransactionEnd::of(ended, Policy::default().response_bytes_max) {
            TransactionEnd::Undo(outcome) => {
                user_transaction.undo().await.map_err(unavailable)?;
                Ok(outcome)
            }
            TransactionEnd::Record { answer, refused, outcome } => {
                if refused && !self.keep_refused_writes {
                    user_transaction.undo().await.map_err(unavailable)?;
                } else {
                    user_transaction.keep().await.map_err(unavailable)?;
                }
                let (answer, retention) = (&answer, self.retention);
                let entry = Entry { id: &id, fingerprint, fence, answer, retention };
                match user_transaction.record(&entry).await.map_err(unavailable)? {
                    Fenced::Applied => Ok(outcome),
                    Fenced::Lost => Err(OnceError::new(OnceErrorKind::Refused)),
                }
            }
        }
    }

    /// As [`run`](Self::run), for a database with a blocking driver and a single writer, where
    /// there is nothing to wait for.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_now<C, O, T>(
        self,
        user_transaction: &mut C,
        operation: O,
    ) -> Result<Outcome<T>, OnceError>
    where
        C: UserTransaction,
        O: FnOnce(&mut C) -> Result<T, OperationError>,
        T: Serialize + DeserializeOwned,
    {
        let run = self
            .wait(Duration::ZERO)
            .run(user_transaction, async |user_transaction: &mut C| operation(user_transaction));
        match pin!(run).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                let message = "a driver that does not block needs `run`";
                Err(OnceError::because(OnceErrorKind::Refused, message))
            }
        }
    }
}

/// Claims the record, waiting for another transaction to end.
async fn take<C: UserTransaction>(
    user_transaction: &mut C,
    id: &RecordId,
    wait: Duration,
) -> Result<BeginResult<()>, OnceError> {
    let (mut begun, mut pause) = (None, BACKOFF_MIN);
    loop {
        let taken = user_transaction.take(id).await.map_err(unavailable)?;
        // A blocking driver may run without a tokio runtime.
        if !matches!(taken, BeginResult::Running) || wait.is_zero() {
            return Ok(taken);
        }
        if begun.get_or_insert_with(Instant::now).elapsed() >= wait {
            return Ok(taken);
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(BACKOFF_MAX);
    }
}

fn unavailable(error: StoreError) -> OnceError {
    OnceError::because(OnceErrorKind::StoreUnavailable, error)
}
