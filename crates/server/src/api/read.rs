//! What can be read: health, metrics, records.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Json,
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, header},
    response::IntoResponse,
};
use semel::core::{Cursor, Key, ListQuery, Scope};
use serde::Deserialize;
use tokio::time::timeout;

use super::{
    ApiState, form,
    refusal::Refusal,
    view::{Answers, ListView, RecordView},
};
use crate::config;

/// How long the store may take to say that it is there.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// What `GET /v1/records` may be asked.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RecordsQuery {
    state: Option<String>,
    scope: Option<String>,
    key: Option<String>,
    age_min: Option<String>,
    limit: Option<u32>,
    after: Option<u64>,
}

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
    query: Result<Query<RecordsQuery>, QueryRejection>,
) -> Result<Json<ListView>, Refusal> {
    let Query(asked) = query.map_err(|error| Refusal::malformed(&error.body_text()))?;
    let malformed = |error: &dyn std::fmt::Display| Refusal::malformed(&error.to_string());
    let key = asked.key.map(|key| Key::new(&key)).transpose().map_err(|e| malformed(&e))?;
    let scope = asked.scope.map(|scope| Scope::new(&scope)).transpose();
    let age_min = asked.age_min.map(|age| config::duration(&age)).transpose();
    let query = ListQuery {
        state: asked.state.map(|word| form::state(&word)).transpose()?,
        scope: scope.map_err(|error| malformed(&error))?,
        age_min: age_min.map_err(|error| malformed(&error))?.unwrap_or_default(),
        after: asked.after.map(Cursor),
        limit: asked.limit.unwrap_or(100),
    };
    let page = state.semel.store().list(&query).await;
    let mut page = page.map_err(|error| Refusal::of_store(&error))?;
    if let Some(key) = key {
        page.items.retain(|record| record.id.key == key);
    }
    Ok(Json((&page).into()))
}

pub(super) async fn record(
    State(state): State<Arc<ApiState>>,
    headers: HeaderMap,
    query: Result<Query<RecordQuery>, QueryRejection>,
) -> Result<Json<RecordView>, Refusal> {
    let Query(asked) = query.map_err(|error| Refusal::malformed(&error.body_text()))?;
    let id = form::record_id(&asked.scope, &asked.caller, &asked.key)?;
    let seen = state.semel.store().get(&id).await;
    let seen = seen.map_err(|error| Refusal::of_store(&error))?.ok_or_else(Refusal::absent)?;
    let answers = match &state.token {
        Some(_) if state.is_operator(&headers) => Answers::Shown,
        Some(_) => Answers::Withheld("send the operator's token to see what was answered"),
        None => Answers::Withheld("configure an operator's token to see what was answered"),
    };
    Ok(Json(RecordView::of(&id, &seen, answers)))
}
