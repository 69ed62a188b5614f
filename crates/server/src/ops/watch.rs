//! What listens to the engine: counts everything, and logs what operators must know.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use semel::{
    Event, EventKind, Observer, Would,
    core::{Caller, Problem, RecordId, Scope},
};

use super::{metrics::Metrics, seldom::Seldom};

/// How often it is said of a scope that it finds no caller.
const NOBODY_EVERY: Duration = Duration::from_secs(60);

/// Counts and logs. Give it to the engine as its observer.
#[derive(Debug)]
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    store: Seldom,
    operation: Seldom,
    observed: Seldom,
    /// The scopes that found nobody: as many as the configuration has at most.
    nobody: Mutex<HashMap<Scope, Seldom>>,
}

impl Watch {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        let (store, operation, observed) = (Seldom::new(), Seldom::new(), Seldom::new());
        Self { metrics, store, operation, observed, nobody: Mutex::default() }
    }

    /// What a route that only observes would have done, where that is not what was done.
    fn observed(&self, event: &Event<'_>, would: Would) {
        let (would, problem) = match would {
            Would::Replay => ("replay", ""),
            Would::Join => ("join", ""),
            Would::Refuse(problem) => ("refuse", problem.slug()),
            Would::Run | Would::Keyless | Would::Pass | Would::Unseen | _ => return,
        };
        if let Some(unlogged) = self.observed.say() {
            let (scope, caller, key) = names(event);
            tracing::info!(
                scope,
                caller,
                key,
                would,
                problem,
                unlogged,
                "observed: the request passed, and would not have run if this route guarded it",
            );
        }
    }

    /// Clients are told that they are nobody; how to let them in, only the operator is told.
    fn found_nobody(&self, scope: &Scope) {
        let mut nobody = self.nobody.lock().unwrap_or_else(PoisonError::into_inner);
        let seldom = nobody.entry(scope.clone()).or_insert_with(|| Seldom::every(NOBODY_EVERY));
        if let Some(unlogged) = seldom.say() {
            let scope = scope.as_str();
            tracing::warn!(
                scope,
                unlogged,
                "no caller was found in a request, which got 403 caller-unidentified. If requests \
                 without a credential are to be taken, as one caller: add --caller anonymous, or \
                 caller = [\"authorization\", \"anonymous\"] to the route. Otherwise say what \
                 tells callers apart, such as caller = [{{ header = \"X-Merchant-Id\" }}]",
            );
        }
    }

    /// What happened to the store, and what was done about it.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are about requests")]
    fn log_store(&self, event: &Event<'_>) {
        match &event.kind {
            EventKind::StoreFailed { operation, error } => {
                if let Some(unlogged) = self.store.say() {
                    tracing::error!(?operation, %error, unlogged, "the store failed");
                }
            }
            EventKind::ClaimDropped => {
                let (scope, caller, key) = names(event);
                if let Some(unlogged) = self.store.say() {
                    tracing::error!(
                        scope,
                        caller,
                        key,
                        unlogged,
                        "too many claims wait for the store: one is asked for no longer, and its \
                         record ends as if this process had died",
                    );
                }
            }
            EventKind::Reaped { records } => {
                tracing::warn!(records, "leases lapsed: their owners were not heard of again");
            }
            EventKind::Swept { records } => {
                tracing::debug!(records, "records past retention are deleted");
            }
            _ => {}
        }
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
            EventKind::OutcomeContradicted { outcome, status } => {
                if let Some(unlogged) = self.operation.say() {
                    tracing::warn!(
                        scope,
                        caller,
                        key,
                        ?outcome,
                        status,
                        unlogged,
                        "the service answered a success with an Idempotency-Outcome that says \
                         nothing happened; the outcome counts as unknown",
                    );
                }
            }
            EventKind::Refused(Problem::CallerUnidentified) => {
                event.scope.into_iter().for_each(|scope| self.found_nobody(scope));
            }
            EventKind::Would(would) => self.observed(event, *would),
            EventKind::StoreFailed { .. }
            | EventKind::ClaimDropped
            | EventKind::Reaped { .. }
            | EventKind::Swept { .. } => self.log_store(event),
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
            | EventKind::Replayed(_)
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
