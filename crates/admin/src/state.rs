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

/// Resolves to a summary of the applied changes, or to an error message.
pub type ReloadFuture = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Reloads the configuration. An `Approver` approves a change of route identity, after which keys
/// that have run may run again.
pub type ReloadFn = Arc<dyn Fn(Option<Approver>) -> ReloadFuture + Send + Sync>;

/// The state of the API.
pub struct ApiState {
    /// The engine.
    pub semel: Semel,
    /// The metrics that `GET /metrics` returns.
    pub metrics: Arc<Metrics>,
    /// The configured tokens. Without an operator token the API is read-only.
    pub tokens: ApiTokens,
    /// State of the service API: the seal and the rules of its claims.
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

    /// The credential of a request that has this permission; `None` if the request has no token and
    /// needs none. A failed check is counted and logged.
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

    /// Counts and logs a request whose token is missing, unknown or of an insufficient role.
    pub(super) fn record_auth_failure(&self, peer: SocketAddr, path: &str) {
        self.metrics.api_auth_failed();
        if let Some(unlogged) = self.auth_failures.allow() {
            let peer = peer.ip();
            tracing::warn!(
                %peer,
                path,
                unlogged,
                "API request refused: token missing, unknown or of an insufficient role"
            );
        }
    }
}
