//! What can be read: health, metrics, records.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Json,
    extract::{Extension, Query, State, rejection::QueryRejection},
    http::{HeaderMap, header},
    response::IntoResponse,
};
use jiff::Timestamp;
use semel::core::Cursor;
use serde::Deserialize;
use tokio::time::timeout;

use super::{
    ApiState,
    filter::{self, FilterQuery},
    form,
    refusal::Refusal,
    view::{Answers, ListView, RecordView},
};

/// How long the store may take to say that it is there.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// How many records a page has if the request does not say.
const LIMIT: u32 = 100;

/// What `GET /v1/record` must be asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordQuery {
    scope: String,
    /// Empty for the anonymous caller, but it must be said.
    caller: String,
    key: String,
}

pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

pub(super) async fn readyz(State(state): State<Arc<ApiState>>) -> Result<&'static str, Refusal> {
    if state.draining.load(Ordering::Relaxed) {
        return Err(Refusal::draining());
    }
    match timeout(READY_PATIENCE, state.semel.store().epoch()).await {
        Ok(Ok(_)) => Ok("ready\n"),
        Ok(Err(error)) => Err(Refusal::of_store(&error)),
        Err(_) => Err(Refusal::store_unavailable("The store did not answer within 2 s.")),
    }
}

pub(super) async fn metrics(State(state): State<Arc<ApiState>>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, OPEN_METRICS)], state.metrics.encode(&state.semel))
}

pub(super) async fn records(
    State(state): State<Arc<ApiState>>,
    query: Result<Query<FilterQuery>, QueryRejection>,
) -> Result<Json<ListView>, Refusal> {
    let Query(asked) = query.map_err(|error| Refusal::malformed(&error.body_text()))?;
    let filter = asked.filter().map_err(|wrong| Refusal::malformed(&wrong))?;
    let (after, limit) = (asked.after.map(Cursor), asked.limit.unwrap_or(LIMIT));
    let page = filter::list(&**state.semel.store(), &filter, after, limit).await;
    Ok(Json(page.map_err(|error| Refusal::of_store(&error))?))
}

pub(super) async fn record(
    State(state): State<Arc<ApiState>>,
    Extension(peer): Extension<SocketAddr>,
    headers: HeaderMap,
    query: Result<Query<RecordQuery>, QueryRejection>,
) -> Result<Json<RecordView>, Refusal> {
    let Query(asked) = query.map_err(|error| Refusal::malformed(&error.body_text()))?;
    let id = form::record_id(&asked.scope, &asked.caller, &asked.key)?;
    let seen = state.semel.store().get(&id).await;
    let seen = seen.map_err(|error| Refusal::of_store(&error))?.ok_or_else(Refusal::absent)?;
    let answers = match &state.token {
        Some(_) if state.is_operator(&headers) => Answers::Shown,
        Some(_) if headers.contains_key(header::AUTHORIZATION) => {
            state.turn_away(peer, "/v1/record");
            Answers::Withheld("this is not the operator's token")
        }
        Some(_) => Answers::Withheld("send the operator's token to see what was answered"),
        None => Answers::Withheld("configure an operator's token to see what was answered"),
    };
    Ok(Json(RecordView::new(&id, seen, answers, Timestamp::now())))
}
