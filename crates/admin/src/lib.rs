//! The operator API: health, metrics, records, and actions on them.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /healthz` | liveness |
//! | `GET /readyz` | readiness: the store answers, and the server is not draining |
//! | `GET /metrics` | counters for Prometheus |
//! | `GET /v1/records` | one page of records, by key, state, scope, caller, reason and time |
//! | `GET /v1/record` | everything about one record |
//! | `POST /v1/resolve`, `POST /v1/delete` | resolves a held record; deletes a record |
//! | `POST /v1/resolve-many` | resolves many records that `GET /v1/records` showed |
//! | `POST /v1/sweep`, `POST /v1/reload` | sweeps now; applies a changed configuration |
//!
//! Any client that reaches the listener may read, except recorded answers: those, and every action,
//! need the operator token. Without a configured token the API is read-only, and a listener that
//! other machines can reach shows no records. Each action is written to the audit log.

mod access;
pub mod actions;
mod api_error;
pub mod audit;
pub mod base64;
mod change;
pub mod filter;
mod listen;
pub mod moment;
mod observed;
mod read;
pub mod requests;
pub mod responses;

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, atomic::AtomicBool},
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::HeaderMap,
    routing::{get, post},
};
use semel::Semel;
use sha2::{Digest as _, Sha256};

use self::api_error::ApiError;
pub use self::listen::{API_HEADER, serve};
use crate::audit::{Approver, AuditLog};
use semel_config::OperatorToken;
use semel_telemetry::{log_throttle::LogThrottle, metrics::Metrics};

/// Maximum size of a request body: an answer of 1 MiB fits, also as base64.
const BODY_BYTES_MAX: usize = 2 << 20;

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

fn router(state: Arc<ApiState>) -> Router {
    Router::new()
        .route("/healthz", get(read::healthz))
        .route("/readyz", get(read::readyz))
        .route("/metrics", get(read::metrics))
        .route("/v1/records", get(read::records))
        .route("/v1/record", get(read::record))
        .route("/v1/resolve", post(change::resolve))
        .route("/v1/resolve-many", post(change::resolve_many))
        .route("/v1/delete", post(change::delete))
        .route("/v1/sweep", post(change::sweep))
        .route("/v1/reload", post(change::reload))
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(state)
}

impl ApiState {
    /// Whether a request carries the operator's token.
    fn is_operator(&self, headers: &HeaderMap) -> bool {
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
    fn record_auth_failure(&self, peer: SocketAddr, path: &str) {
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

#[cfg(test)]
mod tests;
