//! The API listener: health, metrics, records, actions on them, and the service API.
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
//! | `POST /v1/claims`, `/v1/claims/…`, `/v1/batch` | the service API: claim, renew, end |
//! | `GET /`, `/records`, `/held`, … | the dashboard, see `dashboard` |
//!
//! Without `[[api.token]]`, reading needs no token, except for recorded answers. Recorded answers
//! and actions need a token of the role `operator`, claims one of the role `app`. With any
//! `[[api.token]]`, records need `viewer` or `operator`. Without a configured token the API is
//! read-only, and a listener that other machines can reach shows no records. Each action is written
//! to the audit log.

mod access;
mod action_error;
pub mod actions;
mod api_error;
pub mod audit;
mod audit_trail;
pub mod base64;
mod change;
mod claims;
mod dashboard;
pub mod filter;
mod json_object;
mod listen;
mod openapi;
mod read;
pub mod requests;
mod resolve_observed;
pub mod responses;
mod service;
mod state;
pub mod time_or_age;
mod tokens;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};

pub use self::listen::{API_HEADER, serve};
use self::{api_error::ApiError, dashboard::PageState};
pub use self::{
    claims::{ClaimRules, ClaimSeal, ServiceState},
    dashboard::{ConfigSummary, Dashboard},
    state::{ApiState, ReloadFn, ReloadFuture},
    tokens::ApiTokens,
};

/// Maximum size of the body of an action request: an answer of 1 MiB fits, even in base64.
const ACTION_BODY_BYTES_MAX: usize = 2 << 20;

fn router(state: Arc<ApiState>, pages: Arc<PageState>) -> Router {
    Router::new()
        .route("/healthz", get(read::healthz))
        .route("/readyz", get(read::readyz))
        .route("/metrics", get(read::metrics))
        .route("/openapi.json", get(openapi::openapi_json))
        .route("/docs", get(openapi::docs))
        .route("/v1/records", get(read::records))
        .route("/v1/record", get(read::record))
        .route("/v1/resolve", post(change::resolve))
        .route("/v1/resolve-many", post(change::resolve_many))
        .route("/v1/delete", post(change::delete))
        .route("/v1/sweep", post(change::sweep))
        .route("/v1/reload", post(change::reload))
        .route("/v1/claims", post(service::claim))
        .route("/v1/claims/complete", post(service::complete))
        .route("/v1/claims/renew", post(service::renew))
        .route("/v1/claims/release", post(service::release))
        .route("/v1/claims/hold", post(service::hold))
        .route("/v1/batch", post(service::batch))
        .fallback(async || ApiError::not_found())
        .method_not_allowed_fallback(async || ApiError::method_not_allowed())
        .layer(DefaultBodyLimit::max(ACTION_BODY_BYTES_MAX))
        .with_state(state)
        .merge(dashboard::pages(pages))
}

#[cfg(test)]
mod tests;
