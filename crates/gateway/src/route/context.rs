//! What a gateway needs from the process around it.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use semel::Semel;
use semel_tower::MemoryBudget;

use crate::route::caller_secrets::CallerSecrets;
use crate::route::caller_verifiers::CallerVerifiers;
use semel_telemetry::{log_throttle::LogThrottle, metrics::Metrics};

/// Interval between log lines for requests that carry a key and match no route.
const UNMATCHED_LOG_INTERVAL: Duration = Duration::from_secs(3600);

/// Dependencies of a gateway.
#[derive(Clone, Debug)]
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
        Self { semel, secrets, metrics, memory, caller_verifiers: Arc::default(), unmatched }
    }

    pub(crate) fn set_caller_verifiers(&self, verifiers: CallerVerifiers) {
        self.metrics.set_key_sets(verifiers.key_sets());
        self.caller_verifiers.store(Arc::new(verifiers));
    }
}
