//! What the engine tells whoever listens: metrics, logs, a dashboard.

use std::{
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use semel_core::{Fence, Grant, Problem, RecordId, Scope, StoreError, Verdict};

/// Hears of everything that happens to operations.
///
/// It is called in the middle of the work, so it must be quick and must not block; if it panics,
/// the
/// work goes on without it. Without an observer nothing is made for it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use semel::{Event, EventKind, MemoryStore, Observer, Semel};
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

/// Something that happened to an operation, or to a request for one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The family of operations; `None` for the upkeep of the store.
    pub scope: Option<&'a Scope>,
    /// The record; `None` if the request did not come so far as to have one.
    pub id: Option<&'a RecordId>,
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
    Replayed(ReplaySource),
    /// A request got the answer of a run in this process.
    Answered(Run),
    /// A request got an error of ours. A repeat of an operation whose answer was not retained gets
    /// `response-not-retained`, and one of an operation that counts as failed
    /// `operation-failed`; a front may have another answer for these.
    Refused(Problem),
    /// A repeat that joined or waited is told what it gets.
    Waited {
        /// How long it waited.
        took: Duration,
    },
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
    /// The operation failed with an error that a front turned into an unknown outcome.
    Failed(&'a (dyn Error + 'static)),
    /// A service said in `Idempotency-Outcome` that nothing happened, on an answer that reports
    /// success. The outcome counts as unknown.
    OutcomeContradicted {
        /// What the service said.
        outcome: Verdict,
        /// The HTTP status of its answer.
        status: u16,
    },
    /// A request came without a key where there could be one, and was let through.
    Keyless,
    /// A request of a route that only observes went its way; this is what the route would have
    /// done with it.
    Would(Would),
    /// The store was asked and has answered, or failed. Not told of upkeep.
    Asked {
        /// What it was asked.
        operation: StoreOperation,
        /// How long it took.
        took: Duration,
    },
    /// The upkeep moved lapsed records where they belong.
    Reaped {
        /// How many.
        records: u32,
    },
    /// The upkeep deleted records past retention.
    Swept {
        /// How many.
        records: u32,
    },
    /// A claim that may have been granted is no longer retried, because too many are. Where it
    /// was granted, its record ends as if its owner had died.
    ClaimDropped,
    /// The store could not do what it was asked.
    StoreFailed {
        /// What it was asked.
        operation: StoreOperation,
        /// What it said.
        error: &'a StoreError,
    },
}

/// Where a recorded answer came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplaySource {
    /// The store.
    Store,
    /// The memory of this process, without a store call.
    Cache,
    /// The memory of this process, because the store is away.
    CacheWhileAway,
}

/// Whose run made an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// The request's own.
    Own,
    /// That of another request, which this one joined.
    Joined,
    /// One without a claim, because the store was away: the request's own or one that it joined.
    Unguarded,
}

/// What a route that only observes would have done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Would {
    /// It is the first with its key: it would have run.
    Run,
    /// It would have got the recorded answer instead.
    Replay,
    /// It would have waited for the answer of one that runs.
    Join,
    /// It has no key and needs none: it would have run unguarded.
    Keyless,
    /// The store is away and the route lets that pass: it would have run unguarded.
    Pass,
    /// It would have been refused.
    Refuse(Problem),
    /// Nobody can tell: the service did not read its body to the end.
    Unseen,
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
    /// Following the epoch, reaping and sweeping.
    Upkeep,
}

/// Nobody, or somebody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listener(pub(crate) Option<Arc<dyn Observer>>);

impl Listener {
    /// Whether anybody listens; nothing is measured for nobody.
    pub(crate) const fn is_heard(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn tell(&self, id: &RecordId, kind: EventKind<'_>) {
        self.pass_on(|| Event { scope: Some(&id.scope), id: Some(id), kind });
    }

    pub(crate) fn tell_of(&self, scope: Option<&Scope>, kind: EventKind<'_>) {
        self.pass_on(|| Event { scope, id: None, kind });
    }

    fn pass_on<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.0 {
            // A listener must not change what happens, not even by a panic.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on_event(&event())));
        }
    }
}
