//! Engine observer: counts all events, and logs those that operators must know.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use semel::{
    Event, EventKind, ObservedOutcome, Observer,
    core::{Caller, Problem, RecordId, Scope},
};

use super::{log_throttle::LogThrottle, metrics::Metrics};

/// Minimum time between two log lines about unidentified callers of one scope.
const UNIDENTIFIED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum time between two log lines about quotas.
const QUOTA_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum time between two log lines about requests that run again under another caller.
const CALLER_CHANGED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Counts and logs the events of the engine.
#[derive(Debug)]
pub struct EngineObserver {
    metrics: Arc<Metrics>,
    store: LogThrottle,
    operation: LogThrottle,
    limits: LogThrottle,
    observed: LogThrottle,
    quota: LogThrottle,
    caller_changed: LogThrottle,
    /// One throttle per scope with unidentified callers: at most as many as configured scopes.
    unidentified: Mutex<HashMap<Scope, LogThrottle>>,
}

impl EngineObserver {
    /// Counts into these metrics.
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let (store, operation, observed) =
            (LogThrottle::default(), LogThrottle::default(), LogThrottle::default());
        let (quota, unidentified) = (LogThrottle::every(QUOTA_LOG_INTERVAL), Mutex::default());
        let caller_changed = LogThrottle::every(CALLER_CHANGED_LOG_INTERVAL);
        let limits = LogThrottle::every(CALLER_CHANGED_LOG_INTERVAL);
        Self { metrics, store, operation, limits, observed, quota, caller_changed, unidentified }
    }

    /// Logs that a request exceeded a velocity limit.
    fn log_limit(&self, event: &Event<'_>, limit: &str, refused: bool) {
        if let Some(unlogged) = self.limits.allow() {
            let (scope, ..) = record_names(event);
            tracing::info!(scope, limit, refused, unlogged, "a velocity limit was exceeded");
        }
    }

    /// Logs what an observing route would have done, if it differs from what was done.
    fn observed(&self, event: &Event<'_>, would: ObservedOutcome) {
        let (would, problem) = match would {
            ObservedOutcome::Replay => ("replay", ""),
            ObservedOutcome::Join => ("join", ""),
            ObservedOutcome::Refuse(problem) => ("refuse", problem.slug()),
            ObservedOutcome::Run
            | ObservedOutcome::Keyless
            | ObservedOutcome::Pass
            | ObservedOutcome::Unread
            | _ => return,
        };
        if let Some(unlogged) = self.observed.allow() {
            let (scope, caller, key) = record_names(event);
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

    /// Logs refusals that an operator must know of. Others are in the request line.
    #[expect(clippy::wildcard_enum_match_arm, reason = "other problems concern only the client")]
    fn log_refusal(&self, event: &Event<'_>, problem: Problem) {
        match problem {
            Problem::CallerUnidentified => {
                event.scope.into_iter().for_each(|scope| self.log_unidentified(scope));
            }
            Problem::TooManyRecords | Problem::StoreFull => self.log_over_quota(event, problem),
            _ => {}
        }
    }

    /// Logs that a quota refused a new key.
    fn log_over_quota(&self, event: &Event<'_>, problem: Problem) {
        if let Some(unlogged) = self.quota.allow() {
            let (scope, caller, _) = record_names(event);
            let problem = problem.slug();
            tracing::error!(
                scope,
                caller,
                problem,
                unlogged,
                "a quota of [limits] is exhausted: new keys are refused, known ones still work; \
                 see \
                 semel_quota_used and semel_quota_limit",
            );
        }
    }

    /// Logs how to accept requests without an identified caller. Clients only get the refusal.
    fn log_unidentified(&self, scope: &Scope) {
        let mut unidentified = self.unidentified.lock().unwrap_or_else(PoisonError::into_inner);
        let log_throttle = unidentified
            .entry(scope.clone())
            .or_insert_with(|| LogThrottle::every(UNIDENTIFIED_LOG_INTERVAL));
        if let Some(unlogged) = log_throttle.allow() {
            let scope = scope.as_str();
            tracing::warn!(
                scope,
                unlogged,
                "no caller was identified in a request, which got 403 caller-unidentified. To \
                 accept \
                 requests without a credential as one caller, add --caller anonymous, or \
                 caller = [\"authorization\", \"anonymous\"] to the route. Otherwise configure \
                 what \
                 identifies callers, such as caller = [{{ header = \"X-Merchant-Id\" }}]. A \
                 route with \"anonymous\" refuses a request that has a header or a query parameter \
                 that may name its sender; the answer says which",
            );
        }
    }

    /// Logs that a client's credential may have changed between attempts.
    fn log_caller_changed(&self, event: &Event<'_>) {
        if let Some(unlogged) = self.caller_changed.allow() {
            let (scope, caller, key) = record_names(event);
            tracing::warn!(
                scope,
                caller,
                key,
                unlogged,
                "the same request with the same key came from another caller within minutes, and \
                 runs again. If this is one client, its credential has changed between attempts: \
                 use a caller rule that does not depend on the credential, such as jwt",
            );
        }
    }

    /// Logs store failures and maintenance.
    #[expect(clippy::wildcard_enum_match_arm, reason = "other events concern requests")]
    fn log_store(&self, event: &Event<'_>) {
        match &event.kind {
            EventKind::StoreFailed { operation, error } => {
                if let Some(unlogged) = self.store.allow() {
                    tracing::error!(?operation, %error, unlogged, "the store failed");
                }
            }
            EventKind::ClaimDropped => {
                let (scope, caller, key) = record_names(event);
                if let Some(unlogged) = self.store.allow() {
                    tracing::error!(
                        scope,
                        caller,
                        key,
                        unlogged,
                        "too many claims wait for the store: one is no longer retried, and its \
                         record ends as if this process had crashed",
                    );
                }
            }
            EventKind::Reaped { records } => {
                tracing::warn!(records, "leases expired; their records were settled");
            }
            EventKind::Swept { records } => {
                tracing::debug!(records, "records past retention are deleted");
            }
            _ => {}
        }
    }
}

impl Observer for EngineObserver {
    fn on_event(&self, event: &Event<'_>) {
        self.metrics.record_event(event);
        let (scope, caller, key) = record_names(event);
        match &event.kind {
            EventKind::Held(fence) => tracing::warn!(
                scope,
                caller,
                key,
                fence = fence.get(),
                "the outcome is unknown: held until an operator resolves it",
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
                if let Some(unlogged) = self.operation.allow() {
                    tracing::warn!(
                        scope, caller, key, %error, unlogged,
                        "the operation failed",
                    );
                }
            }
            EventKind::OutcomeContradicted { outcome, status } => {
                if let Some(unlogged) = self.operation.allow() {
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
            EventKind::Refused(problem) => self.log_refusal(event, *problem),
            EventKind::Observed(would) => self.observed(event, *would),
            EventKind::CallerChanged => self.log_caller_changed(event),
            EventKind::LimitExceeded { limit, refused } => self.log_limit(event, limit, *refused),
            EventKind::StoreFailed { .. }
            | EventKind::ClaimDropped
            | EventKind::Reaped { .. }
            | EventKind::Swept { .. } => self.log_store(event),
            // These are in the request line, or need no log line.
            EventKind::Claimed(_)
            | EventKind::Completed(_)
            | EventKind::Released(_)
            | EventKind::Passed
            | EventKind::Joined
            | EventKind::Waiting
            | EventKind::Waited { .. }
            | EventKind::StoreReplied { .. }
            | EventKind::Answered(_)
            | EventKind::Replayed(_)
            | EventKind::Keyless
            | _ => {}
        }
    }
}

/// Scope, caller and key of an event; empty where it has none.
fn record_names<'a>(event: &Event<'a>) -> (&'a str, &'a str, &'a str) {
    match event.id {
        Some(RecordId { scope, caller, key }) => {
            (scope.as_str(), caller_name(caller), key.as_str())
        }
        None => (event.scope.map_or("", |scope| scope.as_str()), "", ""),
    }
}

fn caller_name(caller: &Caller) -> &str {
    if caller.is_anonymous() { "anonymous" } else { caller.as_str() }
}
