//! What listens to the engine: counts everything, and logs what operators must know.

use std::sync::Arc;

use semel::{
    Event, EventKind, Observer,
    core::{Caller, RecordId},
};

use super::{metrics::Metrics, seldom::Seldom};

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
                        "the operation failed: its outcome is unknown",
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
