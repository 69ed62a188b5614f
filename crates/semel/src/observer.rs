//! Events for metrics, logs and dashboards.

use std::{
    error::Error,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use semel_core::{Fence, Grant, Problem, RecordId, Scope, StoreError, Verdict};

/// Receives the events of all operations.
///
/// It is called on the request path, so it must be quick and must not block. If it panics, the work
/// continues. Without an observer no event is built.
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
    /// Handles one event.
    fn on_event(&self, event: &Event<'_>);
}

/// An event of an operation, or of a request for one.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The scope; `None` for maintenance of the store.
    pub scope: Option<&'a Scope>,
    /// The record; `None` if the request failed before it had one.
    pub id: Option<&'a RecordId>,
    /// The kind of event.
    pub kind: EventKind<'a>,
}

/// The kind of event.
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind<'a> {
    /// The store granted the claim; the operation begins.
    Claimed(Grant),
    /// The store is unavailable, and the route runs the operation unguarded.
    Passed,
    /// A repeat joined the execution in this process.
    Joined,
    /// A repeat waits for an execution in another process.
    Waiting,
    /// A repeat got the recorded answer.
    Replayed(ReplaySource),
    /// A request got the answer of an execution in this process.
    Answered(Run),
    /// A request got a problem of this engine. A repeat of an operation whose answer was not
    /// retained gets `response-not-retained`, and a repeat of a failed operation gets
    /// `operation-failed`; the HTTP layer may answer these differently.
    Refused(Problem),
    /// A front refused what a request presents to identify its caller, for this reason; or would
    /// have, if it only observes. Another event reports the refusal itself.
    CallerRefused {
        /// The reason, from a closed list of the front.
        reason: &'static str,
    },
    /// A request exceeded a velocity limit.
    LimitExceeded {
        /// The name of the limit, from the configuration of the front.
        limit: &'a str,
        /// Whether the request was refused; otherwise the limit only reports.
        refused: bool,
    },
    /// A repeat that joined or waited gets its reply.
    Waited {
        /// How long it waited.
        took: Duration,
    },
    /// The answer is recorded.
    Completed(Fence),
    /// The key is released for another attempt.
    Released(Fence),
    /// The outcome is unknown, and that is recorded.
    Held(Fence),
    /// The record has another owner by now.
    Lost(Fence),
    /// The operation panicked.
    Panicked(Fence),
    /// The operation failed with an error, which counts as an unknown outcome.
    Failed(&'a (dyn Error + 'static)),
    /// The operation begins, although the same request, with the same scope and key, began under
    /// another caller in the last minutes. If they are one client, its credential has changed
    /// between attempts, and the operation runs twice.
    CallerChanged,
    /// A service reported success but declared in `Idempotency-Outcome` that nothing happened. The
    /// outcome counts as unknown.
    OutcomeContradicted {
        /// The declared verdict.
        outcome: Verdict,
        /// The HTTP status of its answer.
        status: u16,
    },
    /// The memory budget has no room for the answer of an operation that ran. The answer is
    /// streamed through and recorded without its body.
    NotRetained,
    /// A request without an optional key was passed.
    Keyless,
    /// A request of an observing route was passed. The value is the outcome in guard mode.
    Observed(ObservedOutcome),
    /// A store call has returned or failed. Not emitted for maintenance.
    StoreReplied {
        /// The store operation.
        operation: StoreOperation,
        /// How long it took.
        took: Duration,
    },
    /// Maintenance settled records whose lease had expired.
    Reaped {
        /// How many.
        records: u32,
    },
    /// Maintenance deleted records past retention.
    Swept {
        /// How many.
        records: u32,
    },
    /// A claim with an unknown result is no longer retried, because too many are being retried. If
    /// it was granted, its record ends as if its owner had crashed.
    ClaimDropped,
    /// A store call failed.
    StoreFailed {
        /// The store operation.
        operation: StoreOperation,
        /// The error.
        error: &'a StoreError,
    },
}

/// The source of a recorded answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReplaySource {
    /// The store.
    Store,
    /// The cache of this process, without a store call.
    Cache,
    /// The cache of this process, because the store is unavailable.
    CacheWhileAway,
}

/// Which execution produced an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Run {
    /// The request's own execution.
    Own,
    /// The execution of another request, which this one joined.
    Joined,
    /// An execution without a claim, because the store was unavailable: the request's own or one
    /// that it joined.
    Unguarded,
}

/// The outcome that a request of an observing route would have had in guard mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObservedOutcome {
    /// It has a new key and would have run.
    Run,
    /// It would have got the recorded answer.
    Replay,
    /// It would have waited for the answer of a running execution.
    Join,
    /// It has no key and the route does not require one: it would have run unguarded.
    Keyless,
    /// The store is unavailable and the route passes requests: it would have run unguarded.
    Pass,
    /// It would have been refused.
    Refuse(Problem),
    /// Unknown: the service did not read its body to the end.
    Unread,
}

/// An operation of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreOperation {
    /// [`Store::claim`](semel_core::Store::claim)
    Claim,
    /// [`Store::renew`](semel_core::Store::renew)
    Renew,
    /// Recording the end of an execution: complete, release or hold.
    Record,
    /// [`Store::get`](semel_core::Store::get)
    Get,
    /// Maintenance: reading the epoch, reaping and sweeping.
    Maintenance,
}

/// Passes events to the observer, if one is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventSink(pub(crate) Option<Arc<dyn Observer>>);

impl EventSink {
    /// Whether an observer is set. Without one nothing is measured.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn emit(&self, id: &RecordId, kind: EventKind<'_>) {
        self.deliver(|| Event { scope: Some(&id.scope), id: Some(id), kind });
    }

    pub(crate) fn emit_scoped(&self, scope: Option<&Scope>, kind: EventKind<'_>) {
        self.deliver(|| Event { scope, id: None, kind });
    }

    fn deliver<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.0 {
            // An observer must not change the result, not even by a panic.
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on_event(&event())));
        }
    }
}
