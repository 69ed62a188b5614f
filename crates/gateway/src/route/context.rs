//! What a gateway needs from the process around it.

use std::{fmt, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use semel::Semel;
use semel_tower::MemoryBudget;

use crate::reconcile::{AuditedResolve, HeldReads, ReconciledScopes};
use crate::route::caller_secrets::CallerSecrets;
use crate::route::caller_verifiers::CallerVerifiers;
use semel_telemetry::{log_throttle::LogThrottle, metrics::Metrics};

/// Interval between log lines for requests that carry a key and match no route.
const UNMATCHED_LOG_INTERVAL: Duration = Duration::from_secs(3600);

/// Dependencies of a gateway.
#[derive(Clone)]
pub struct GatewayContext {
    /// The engine.
    pub semel: Semel,
    /// Secrets that turn credentials into caller names.
    pub secrets: CallerSecrets,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Memory limit for bodies and responses.
    pub memory: MemoryBudget,
    /// Verifiers of the tokens that name callers, replaced by a reload.
    pub(crate) caller_verifiers: Arc<ArcSwap<CallerVerifiers>>,
    /// Throttles the log line for requests that carry a key and match no route.
    pub(super) unmatched: Arc<LogThrottle>,
    /// The scopes whose held records are reconciled, replaced by a reload.
    pub(crate) reconciled: Arc<ReconciledScopes>,
    /// When held records are read.
    pub(crate) held_reads: Arc<HeldReads>,
    /// Resolves held records; without it none is read.
    pub(crate) audited_resolve: Option<AuditedResolve>,
}

impl GatewayContext {
    /// Creates the context.
    pub fn new(
        semel: Semel,
        secrets: CallerSecrets,
        metrics: Arc<Metrics>,
        memory: MemoryBudget,
    ) -> Self {
        let unmatched = Arc::new(LogThrottle::every(UNMATCHED_LOG_INTERVAL));
        Self {
            semel,
            secrets,
            metrics,
            memory,
            caller_verifiers: Arc::default(),
            unmatched,
            reconciled: Arc::default(),
            held_reads: Arc::default(),
            audited_resolve: None,
        }
    }

    /// Asks upstreams what became of held operations, where their routes say how, and resolves the
    /// records with this function.
    #[must_use]
    pub fn with_audited_resolve(mut self, resolve: AuditedResolve) -> Self {
        self.audited_resolve = Some(resolve);
        self
    }

    pub(crate) fn set_caller_verifiers(&self, verifiers: CallerVerifiers) {
        self.metrics.set_key_sets(verifiers.key_sets());
        self.caller_verifiers.store(Arc::new(verifiers));
    }
}

impl fmt::Debug for GatewayContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayContext").field("semel", &self.semel).finish_non_exhaustive()
    }
}
