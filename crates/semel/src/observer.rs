//! What the engine tells whoever listens: metrics, logs, a dashboard.

use std::{fmt, sync::Arc};

use semel_core::{Fence, Grant, Problem, RecordId, StoreError};

/// Hears of everything that happens to operations.
///
/// It is called in the middle of the work, so it must be quick and must not block. Without an
/// observer nothing is made for it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use semel::{Event, EventKind, MemoryStore, Observer, Semel, core::RecordId};
///
/// #[derive(Debug, Default)]
/// struct Replays(AtomicU64);
///
/// impl Observer for Replays {
///     fn on_event(&self, event: &Event<'_>) {
///         if let EventKind::Replayed { .. } = event.kind {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let semel = Semel::builder(MemoryStore::new()).observer(Replays::default()).build();
/// # let _ = semel;
/// ```
pub trait Observer: fmt::Debug + Send + Sync + 'static {
    /// This happened.
    fn on_event(&self, event: &Event<'_>);
}

/// Something that happened to an operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The record.
    pub id: &'a RecordId,
    /// What happened.
    pub kind: EventKind<'a>,
}

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// The store granted the claim; the operation begins.
    Claimed(Grant),
    /// The store is away and the route runs it unguarded.
    Passed,
    /// A repeat joined the execution in this process.
    Joined,
    /// A repeat waits for an execution elsewhere.
    Waiting,
    /// A repeat got the recorded answer.
    Replayed {
        /// Whether the store was not even asked.
        cached: bool,
    },
    /// A request got an error of ours.
    Refused(Problem),
    /// The answer is recorded.
    Completed(Fence),
    /// The key is free for another try.
    Released(Fence),
    /// The outcome is unknown, and that is recorded.
    Held(Fence),
    /// Somebody else owns the record by now.
    Lost(Fence),
    /// The operation panicked.
    Panicked(Fence),
    /// The store could not do what it was asked.
    StoreFailed {
        /// What it was asked.
        operation: StoreOperation,
        /// What it said.
        error: &'a StoreError,
    },
}

/// What a store was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// [`Store::claim`](semel_core::Store::claim)
    Claim,
    /// [`Store::renew`](semel_core::Store::renew)
    Renew,
    /// How an execution ended: complete, release or hold.
    Record,
    /// [`Store::get`](semel_core::Store::get)
    Get,
}

/// Nobody, or somebody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listener(pub(crate) Option<Arc<dyn Observer>>);

impl Listener {
    pub(crate) fn tell(&self, id: &RecordId, kind: EventKind<'_>) {
        if let Some(observer) = &self.0 {
            observer.on_event(&Event { id, kind });
        }
    }
}
