//! When the upstream is asked what became of a held operation, for the advice to its client.

use std::{fmt::Debug, time::Duration};

use semel::core::RecordId;

/// Knows when held records of a layer are read. See
/// [`IdempotencyLayer::held_status`](crate::IdempotencyLayer::held_status).
pub trait HeldStatus: Debug + Send + Sync {
    /// How long it takes until a held record is read, usually.
    fn interval(&self) -> Duration;

    /// When this held record is read next; `None` if it is read no more.
    fn next_read(&self, id: &RecordId) -> Option<Duration>;
}
