//! What the handlers of the API share: the engine, the metrics, the token, the audit log.

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

use axum::http::HeaderMap;
use semel::Semel;
use sha2::{Digest as _, Sha256};

use crate::audit::{Approver, AuditLog};
use semel_config::OperatorToken;
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
    /// The operator token; without one the API is read-only.
    pub token: Option<OperatorToken>,
    /// The audit log.
    pub audit: AuditLog,
    /// Applies a changed configuration.
    pub reload: ReloadFn,
    /// Whether the server is draining.
    pub draining: Arc<AtomicBool>,
    /// Throttles log lines about wrong tokens.
    pub auth_failures: LogThrottle,
}

impl fmt::Debug for ApiState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiState").field("audit", &self.audit).finish_non_exhaustive()
    }
}

impl ApiState {
    /// Whether a request carries the operator's token.
    pub(super) fn is_operator(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get("authorization").and_then(|value| value.to_str().ok());
        let sent = sent.and_then(|value| value.split_once(' '));
        match (&self.token, sent) {
            (Some(OperatorToken(token)), Some((scheme, sent))) => {
                scheme.eq_ignore_ascii_case("bearer") && is_same(token, sent.trim())
            }
            (None, _) | (_, None) => false,
        }
    }

    /// Counts and logs a request with a missing or wrong token.
    pub(super) fn record_auth_failure(&self, peer: SocketAddr, path: &str) {
        self.metrics.operator_refused();
        if let Some(unlogged) = self.auth_failures.allow() {
            let peer = peer.ip();
            tracing::warn!(%peer, path, unlogged, "the operator token is missing or wrong");
        }
    }
}

/// Compares in constant time.
fn is_same(one: &str, two: &str) -> bool {
    let (one, two) = (Sha256::digest(one), Sha256::digest(two));
    one.iter().zip(&two).fold(0, |wrong, (one, two)| wrong | (one ^ two)) == 0
}
