//! What the handlers of the API share: the engine, the metrics, the token, the audit log.

use std::{fmt, net::SocketAddr, pin::Pin, sync::Arc};

use axum::http::HeaderMap;
use semel::Semel;
use tokio::sync::watch;

use crate::{
    api_error::ApiError,
    audit::{Approver, AuditLog},
    claims::ServiceState,
    tokens::{ApiTokens, Credential, Permission},
};
use semel_config::ApiRole;
use semel_telemetry::{log_throttle::LogThrottle, metrics::Metrics};

/// Applies a configuration; resolves to what changed, or to what is wrong.
pub type ReloadFuture = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Applies a changed configuration. The acceptor accepts that keys run again because of it.
pub type ReloadFn = Arc<dyn Fn(Option<Approver>) -> ReloadFuture + Send + Sync>;

/// The state of the API.
pub struct ApiState {
    /// The engine.
    pub semel: Semel,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// The tokens; without one of an operator nothing can be changed.
    pub tokens: ApiTokens,
    /// The service API's part.
    pub service: ServiceState,
    /// The audit log.
    pub audit: AuditLog,
    /// Applies a changed configuration.
    pub reload: ReloadFn,
    /// Whether the server is draining. A change ends the claims that wait.
    pub draining: watch::Receiver<bool>,
    /// Throttles log lines about wrong tokens.
    pub auth_failures: LogThrottle,
}

impl fmt::Debug for ApiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiState").field("audit", &self.audit).finish_non_exhaustive()
    }
}

impl ApiState {
    /// Whether a request carries a token of an operator.
    pub(super) fn is_operator(&self, headers: &HeaderMap) -> bool {
        self.tokens.identify(headers).is_some_and(|token| token.role == ApiRole::Operator)
    }

    /// The credential of a request that may do this; `None` if it needs none. A refusal is counted.
    pub(super) fn authorize(
        &self,
        headers: &HeaderMap,
        permission: Permission,
        peer: SocketAddr,
        path: &str,
    ) -> Result<Option<&Credential>, ApiError> {
        let checked = self.tokens.check(headers, permission);
        if checked.is_err() {
            self.record_auth_failure(peer, path);
        }
        checked
    }

    /// Counts and logs a request with a missing or wrong token.
    pub(super) fn record_auth_failure(&self, peer: SocketAddr, path: &str) {
        self.metrics.operator_refused();
        if let Some(unlogged) = self.auth_failures.allow() {
            let peer = peer.ip();
            tracing::warn!(%peer, path, unlogged, "the token is missing, wrong or of another role");
        }
    }
}
