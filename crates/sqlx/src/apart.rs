//! What is begun on a connection is brought to its end, whoever stops waiting for it.
//!
//! A future of sqlx that is dropped while `BEGIN` or `COMMIT` is on its way may leave a connection
//! in its pool of which nobody knows what is open on it. So both run in tasks of their own.

use semel::{
    core::{Answer, Fence, Fingerprint, RecordId, StoreError, StoreErrorKind},
    joint::Entry,
};
use std::time::Duration;

/// Runs this to its end. What it gives is dropped if nobody waits for it any more.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        let message = "the work on a connection was cut off";
        let error = StoreError::new(StoreErrorKind::Unavailable, message).because(error);
        Err(error.effect_unknown())
    })
}

/// A record to be added, by itself.
pub(crate) struct Kept {
    id: RecordId,
    fingerprint: Fingerprint,
    fence: Fence,
    answer: Answer,
    retention: Duration,
}

impl Kept {
    pub(crate) fn of(entry: &Entry<'_>) -> Self {
        let Entry { id, fingerprint, fence, answer, retention } = *entry;
        Self { id: id.clone(), fingerprint, fence, answer: answer.clone(), retention }
    }

    pub(crate) const fn entry(&self) -> Entry<'_> {
        let Self { id, fingerprint, fence, answer, retention } = self;
        let (fingerprint, fence, retention) = (*fingerprint, *fence, *retention);
        Entry { id, fingerprint, fence, answer, retention }
    }
}
