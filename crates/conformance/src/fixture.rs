//! The fixture that a backend gives the kit: a store, other handles to it, and a manual clock.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use semel_core::Store;

/// An empty store for one case alone, on a clock that only the kit moves.
///
/// What a store can do is said by which traits its fixture has: one that survives its process is
/// [`Durable`] too.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// The store. Every call gives the same one.
    fn store(&self) -> Arc<dyn Store>;

    /// Another handle to the same records, as another process would have it: with connections,
    /// caches and counters of its own wherever the backend allows more than one process.
    async fn another(&self) -> Arc<dyn Store>;

    /// Moves the clock by which all handles measure leases and retention. Without this call it must
    /// stand still, so that ages and leases can be compared to the millisecond.
    async fn advance(&self, by: Duration);
}

/// A store whose records outlive its process.
#[async_trait]
pub trait Durable: Fixture {
    /// Ends the store as abruptly as the backend can be ended from inside, and opens it again. The
    /// kit has dropped every handle by then; [`Fixture::store`] gives the new one from here on.
    async fn reopen(&self);
}

/// A store that can be backed up and restored, as its operator would.
#[async_trait]
pub trait Restorable: Durable {
    /// Takes a backup while the store is open.
    async fn back_up(&self);

    /// Puts the last backup in the place of the store, does what its operator has to do after a
    /// restore, and opens it. The kit has dropped every handle by then.
    async fn restore(&self);

    /// Deletes the store and makes an empty one in its place. The kit has dropped every handle by
    /// then.
    async fn replace_with_empty(&self);
}
