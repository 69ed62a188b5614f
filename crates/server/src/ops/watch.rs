//! What listens to the engine: counts everything, and logs what operators must know.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use semel::{
    Event, EventKind, Observer,
    core::{Caller, RecordId},
};
use tokio::time::Instant;

use super::metrics::Metrics;

/// How long a failure that repeats is only counted after it was logged.
const SILENCE: Duration = Duration::from_secs(10);

/// Counts and logs. Give it to the engine as its observer.
#[derive(Debug)]
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    store: Seldom,
    operation: Seldom,
}

impl Watch {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, store: Seldom::new(), operation: Seldom::new() }
    }
}

impl Observer for Watch {
    fn on_event(&self, event: &Event<'_>) {
        self.metrics.hear(event);
        let (scope, caller, key) = names(event);
        match &event.kind {
            EventKind::Held(fence) => tracing::warn!(
                scope,
                caller,
                key,
                fence = fence.get(),
                "the outcome is unknown: held until someone resolves it",
            ),
            EventKind::Lost(fence) => tracing::warn!(
                scope,
                caller,
                key,
                fence = fence.get(),
                "a late write was refused: the record has a newer owner",
            ),
            EventKind::Panicked(fence) => tracing::error!(
                scope,
                caller,
                key,
                fence = fence.get(),
                "the operation panicked: its outcome is unknown",
            ),
            EventKind::Failed(error) => {
                if let Some(unlogged) = self.operation.say() {
                    tracing::warn!(
                        scope, caller, key, %error, unlogged,
                        "the operation failed",
                    );
                }
            }
            EventKind::StoreFailed { operation, error } => {
                if let Some(unlogged) = self.store.say() {
                    tracing::error!(?operation, %error, unlogged, "the store failed");
                }
            }
            EventKind::Reaped { records } => {
                tracing::warn!(records, "leases lapsed: their owners were not heard of again");
            }
            EventKind::Swept { records } => {
                tracing::debug!(records, "records past retention are deleted");
            }
            // The line of the request says it, or there is nothing to say.
            EventKind::Claimed(_)
            | EventKind::Completed(_)
            | EventKind::Released(_)
            | EventKind::Passed
            | EventKind::Joined
            | EventKind::Waiting
            | EventKind::Waited { .. }
            | EventKind::Asked { .. }
            | EventKind::Answered(_)
            | EventKind::Replayed { .. }
            | EventKind::Refused(_)
            | EventKind::Keyless
            | _ => {}
        }
    }
}

/// Scope, caller and key, as far as an event has them.
fn names<'a>(event: &Event<'a>) -> (&'a str, &'a str, &'a str) {
    match event.id {
        Some(RecordId { scope, caller, key }) => (scope.as_str(), named(caller), key.as_str()),
        None => (event.scope.map_or("", |scope| scope.as_str()), "", ""),
    }
}

fn named(caller: &Caller) -> &str {
    if caller.is_anonymous() { "anonymous" } else { caller.as_str() }
}

/// Something that may happen ten thousand times a second and is said now and then.
#[derive(Debug)]
struct Seldom {
    origin: Instant,
    /// When it may be said again, in milliseconds since the origin.
    next: AtomicU64,
    unsaid: AtomicU64,
}

impl Seldom {
    fn new() -> Self {
        Self { origin: Instant::now(), next: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }

    /// Whether to say it now, and if so how many times it was left unsaid since the last time.
    fn say(&self) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (now, next) = (millis(self.origin.elapsed()), self.next.load(Ordering::Relaxed));
        let then = now.saturating_add(millis(SILENCE));
        let taken = now >= next
            && self.next.compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if taken {
            Some(self.unsaid.swap(0, Ordering::Relaxed))
        } else {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_repeats_is_said_now_and_then_with_a_count() {
        let seldom = Seldom::new();
        assert_eq!(seldom.say(), Some(0));
        assert_eq!((seldom.say(), seldom.say()), (None, None));
        tokio::time::advance(SILENCE).await;
        assert_eq!(seldom.say(), Some(2));
        assert_eq!(seldom.say(), None);
    }
}
