//! Read requests: health, metrics, records.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Extension, Query, State, rejection::QueryRejection},
    http::{HeaderMap, header},
    response::IntoResponse,
};
use jiff::Timestamp;
use semel::core::Cursor;
use semel_config::ApiRole;
use semel_telemetry::metrics::Exposition;
use serde::Deserialize;
use tokio::time::timeout;

use super::{
    api_error::ApiError,
    filter::{self, FilterQuery},
    requests,
    responses::{AnswerVisibility, RecordPageView, RecordView},
    state::ApiState,
    tokens::Permission,
};

/// Timeout of the store in a readiness check.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Default page size.
const PAGE_SIZE_DEFAULT: u32 = 100;

/// The query of `GET /v1/record`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordQuery {
    scope: String,
    /// Required; empty for the anonymous caller.
    caller: String,
    key: String,
}

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(state): State<Arc<ApiState>>) -> Result<&'static str, ApiError> {
    if *state.draining.borrow() {
        return Err(ApiError::draining());
    }
    match timeout(READY_TIMEOUT, state.semel.store().epoch()).await {
        Ok(Ok(_)) => Ok("ready\n"),
        Ok(Err(error)) => Err(ApiError::from_store_error(&error)),
        Err(_) => Err(ApiError::store_unavailable("The store did not answer within 2 s.")),
    }
}

pub(super) async fn metrics(
    State(state): State<Arc<ApiState>>,
    Extension(peer): Extension<SocketAddr>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    state.authorize(&headers, Permission::Metrics, peer, "/metrics")?;
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Exposition::accepted(&accept.collect::<Vec<_>>().join(","));
    let headers = [(header::CONTENT_TYPE, format.content_type()), (header::VARY, "accept")];
    Ok((headers, state.metrics.encode(&state.semel, format)))
}

pub(super) async fn records(
    State(state): State<Arc<ApiState>>,
    Extension(peer): Extension<SocketAddr>,
    headers: HeaderMap,
    query: Result<Query<FilterQuery>, QueryRejection>,
) -> Result<Json<RecordPageView>, ApiError> {
    state.authorize(&headers, Permission::Records, peer, "/v1/records")?;
    let Query(query) = query.map_err(|error| ApiError::malformed(&error.body_text()))?;
    let filter = query.to_filter().map_err(|wrong| ApiError::malformed(&wrong))?;
    let (after, limit) = (query.after.map(Cursor), query.limit.unwrap_or(PAGE_SIZE_DEFAULT));
    let page = filter::list(&**state.semel.store(), &filter, after, limit).await;
    Ok(Json(page.map_err(|error| ApiError::from_store_error(&error))?))
}

pub(super) async fn record(
    State(state): State<Arc<ApiState>>,
    Extension(peer): Extension<SocketAddr>,
    headers: HeaderMap,
    query: Result<Query<RecordQuery>, QueryRejection>,
) -> Result<Json<RecordView>, ApiError> {
    let credential = state.authorize(&headers, Permission::Records, peer, "/v1/record")?;
    let Query(query) = query.map_err(|error| ApiError::malformed(&error.body_text()))?;
    let id = requests::record_id(&query.scope, &query.caller, &query.key)?;
    let snapshot = state.semel.store().get(&id).await;
    let snapshot = snapshot
        .map_err(|error| ApiError::from_store_error(&error))?
        .ok_or_else(ApiError::record_not_found)?;
    let answers = if state.is_operator(&headers) {
        AnswerVisibility::Shown
    } else if !state.tokens.has(ApiRole::Operator) {
        AnswerVisibility::Withheld("configure an operator token to see the answer")
    } else if headers.contains_key(header::AUTHORIZATION) {
        if credential.is_none() {
            state.record_auth_failure(peer, "/v1/record");
        }
        AnswerVisibility::Withheld("the token sent is not an operator token")
    } else {
        AnswerVisibility::Withheld("send the operator token to see the answer")
    };
    let view = RecordView::new(&id, snapshot, answers, Timestamp::now());
    Ok(Json(view.with_reconcile_note(&**state.semel.store(), &id).await))
}
