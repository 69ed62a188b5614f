//! Runs work on a connection to its end, even if the caller stops waiting for it.
//!
//! A future of sqlx that is dropped during `BEGIN` or `COMMIT` may leave a connection in the pool
//! whose transaction state is unknown. So both run in separate tasks.

use semel::{
    core::{Answer, Fence, Fingerprint, RecordId, StoreError, StoreErrorKind},
    transactional::Entry,
};
use std::time::Duration;

/// Runs this in a separate task. Its result is dropped if the caller stops waiting.
pub(crate) async fn run_detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        let message = "the task on a connection was cancelled";
        let error = StoreError::new(StoreErrorKind::Unavailable, message).because(error);
        Err(error.effect_unknown())
    })
}

/// An owned entry, for a separate task.
pub(crate) struct DetachedEntry {
    id: RecordId,
    fingerprint: Fingerprint,
    fence: Fence,
    answer: Answer,
    retention: Duration,
}

impl DetachedEntry {
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
