//! An operation under a key, inside a transaction that its caller has opened.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use semel_core::{Caller, Fenced, Fingerprint, Key, Policy, RecordId, Scope, StoreError};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep};

use super::{Begun, Carrier, Entry, INBOX_RETENTION};
use crate::{
    OnceError, OnceErrorKind, Outcome, Stop,
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
/// | [`Stop::refused`] | undone, or [kept] | added | [`Outcome::Refused`] |
/// | [`Stop::retry`], or `?` on any error | undone | none | [`Outcome::Retry`] |
///
/// [kept]: Self::keep_refused_writes
///
/// `Replayed`, `Reused` and `InProgress` are the only other outcomes.
///
/// # The cost of waiting
///
/// While another transaction runs the same operation, this one waits and holds its connection, its
/// locks and its snapshot. So it waits for at most two seconds unless [`wait`](Self::wait) is set;
/// then it returns [`Outcome::InProgress`], and the transaction stays usable. Make this call before
/// you take any lock. Where many repeats are expected, let the engine open the transaction instead:
/// on a [`JointStore`](super::JointStore), waiters hold no connection.
#[derive(Debug)]
#[must_use]
pub struct Within {
    scope: Scope,
    caller: Caller,
    key: Key,
    fingerprint: Result<Fingerprint, OnceError>,
    retention: Duration,
    wait: Duration,
    keep_refused_writes: bool,
}

impl Within {
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
    /// is [`Outcome::Reused`] for the other.
    pub fn message(source: Scope, id: Key) -> Self {
        Self::new(source, Caller::anonymous(), id).retention(INBOX_RETENTION)
    }

    /// Sets the fingerprint. A repeat with another one gets [`Outcome::Reused`]. See
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
    pub async fn run<C, O, T>(self, carrier: &mut C, operation: O) -> Result<Outcome<T>, OnceError>
    where
        C: Carrier,
        O: AsyncFnOnce(&mut C) -> Result<T, Stop>,
        T: Serialize + DeserializeOwned,
    {
        let fingerprint = self.fingerprint?;
        let id = RecordId::new(self.scope, self.caller, self.key);
        let fence = match take(carrier, &id, self.wait).await? {
            Begun::Free { fence, .. } => fence,
            Begun::Running => return Ok(Outcome::InProgress),
            Begun::Recorded(found) if found.fingerprint != fingerprint => {
                return Ok(Outcome::Reused);
            }
            Begun::Recorded(found) => return end::replayed(&found.answer),
        };
        carrier.mark().await.map_err(unavailable)?;
        let ended = operation(carrier).await;
        match TransactionEnd::of(ended, Policy::default().response_bytes_max) {
            TransactionEnd::Undo(outcome) => {
                carrier.undo().await.map_err(unavailable)?;
                Ok(outcome)
            }
            TransactionEnd::Record { answer, refused, outcome } => {
                if refused && !self.keep_refused_writes {
                    carrier.undo().await.map_err(unavailable)?;
                } else {
                    carrier.keep().await.map_err(unavailable)?;
                }
                let (answer, retention) = (&answer, self.retention);
                let entry = Entry { id: &id, fingerprint, fence, answer, retention };
                match carrier.record(&entry).await.map_err(unavailable)? {
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
    pub fn run_now<C, O, T>(self, carrier: &mut C, operation: O) -> Result<Outcome<T>, OnceError>
    where
        C: Carrier,
        O: FnOnce(&mut C) -> Result<T, Stop>,
        T: Serialize + DeserializeOwned,
    {
        let run =
            self.wait(Duration::ZERO).run(carrier, async |carrier: &mut C| operation(carrier));
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
async fn take<C: Carrier>(
    carrier: &mut C,
    id: &RecordId,
    wait: Duration,
) -> Result<Begun<()>, OnceError> {
    let (mut begun, mut pause) = (None, BACKOFF_MIN);
    loop {
        let taken = carrier.take(id).await.map_err(unavailable)?;
        // A blocking driver may run without a tokio runtime.
        if !matches!(taken, Begun::Running) || wait.is_zero() {
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
