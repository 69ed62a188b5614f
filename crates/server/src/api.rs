//! The listener for operators: health, metrics, records, and acts on them.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /healthz` | says that the process lives |
//! | `GET /readyz` | says whether the store answers and requests are taken |
//! | `GET /metrics` | counters for Prometheus |
//! | `GET /v1/records` | one page of records, by key, state, scope, caller, reason and time |
//! | `GET /v1/record` | everything about one record |
//! | `POST /v1/resolve`, `POST /v1/delete` | says what became of a record, or deletes it |
//! | `POST /v1/resolve-many` | says what became of many records that `GET /v1/records` showed |
//! | `POST /v1/sweep`, `POST /v1/reload` | sweeps now; applies a changed configuration |
//!
//! Whoever reaches the listener may read, but not what was answered to clients: that, and every
//! act, needs the operator's token. Without a token in the configuration nothing can be changed
//! here at all, and a listener that other machines reach shows no records either. Each act is
//! written to the audit log.

pub(crate) mod acts;
pub(crate) mod base64;
mod change;
pub(crate) mod filter;
pub(crate) mod form;
mod gate;
mod listen;
mod read;
mod refusal;
pub(crate) mod view;

use std::{
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

pub(crate) use self::listen::{API_HEADER, serve};
use self::refusal::Refusal;
use crate::{
    config::OperatorToken,
    ops::{audit::Audit, metrics::Metrics, seldom::Seldom},
    route_identity::Acceptor,
};

/// The largest body of an act: an answer of 1 MiB fits, also as base64.
const BODY_BYTES_MAX: usize = 2 << 20;

/// A changed configuration that is being applied: what changed, or what is wrong with it.
pub(crate) type Reloading = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// Applies a changed configuration. The acceptor accepts that keys run again because of it.
pub(crate) type Reload = Arc<dyn Fn(Option<Acceptor>) -> Reloading + Send + Sync>;

/// What the listener works with.
pub(crate) struct ApiState {
    pub(crate) semel: Semel,
    pub(crate) metrics: Arc<Metrics>,
    /// What an operator has to send; without one the listener is read-only.
    pub(crate) token: Option<OperatorToken>,
    pub(crate) audit: Audit,
    pub(crate) reload: Reload,
    /// Whether the process is about to end, and takes no requests any more.
    pub(crate) draining: Arc<AtomicBool>,
    /// Speaks of those who come with a wrong token.
    pub(crate) intruders: Seldom,
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
        .fallback(async || Refusal::not_found())
        .method_not_allowed_fallback(async || Refusal::method_not_allowed())
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

    /// Somebody wants what only an operator may have, and is none.
    fn turn_away(&self, peer: SocketAddr, path: &str) {
        self.metrics.operator_refused();
        if let Some(unlogged) = self.intruders.say() {
            let peer = peer.ip();
            tracing::warn!(%peer, path, unlogged, "an operator's token is missing or wrong");
        }
    }
}

/// Compares without telling by its time how much was right.
fn is_same(one: &str, two: &str) -> bool {
    let (one, two) = (Sha256::digest(one), Sha256::digest(two));
    one.iter().zip(&two).fold(0, |wrong, (one, two)| wrong | (one ^ two)) == 0
}

#[cfg(test)]
mod tests;
