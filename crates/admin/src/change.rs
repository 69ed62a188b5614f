//! Requests that change something. An action continues if its client disconnects.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Extension, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode},
};
use serde::de::DeserializeOwned;

use super::{
    action_error::ActionError,
    actions,
    api_error::ApiError,
    json_object,
    requests::{self, AuditNote, DeleteRequest, ResolveManyRequest, ResolveRequest},
    responses::{ActionResultView, ResolveManyView, SweepView},
    service::has_json,
    state::ApiState,
    tokens::Permission,
};
use crate::audit::{Approver, AuditResult, OperatorAction};

/// How long one request to sweep, or to resolve many records, may take. The client sends another
/// request for the rest.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long a name in the audit log may be.
const WHO_BYTES_MAX: usize = 200;

type BodyResult = Result<Bytes, BytesRejection>;
type ApiStateExtractor = State<Arc<ApiState>>;
type PeerExtension = Extension<SocketAddr>;

pub(super) async fn resolve(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: ResolveRequest = read(&state, (peer, "/v1/resolve"), &headers, body)?;
    let who = who(&request.who, peer);
    carried_out(async move {
        actions::resolve(&**state.semel.store(), &state.audit, request, who).await
    })
    .await
}

pub(super) async fn resolve_many(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ResolveManyView>, ApiError> {
    let request: ResolveManyRequest = read(&state, (peer, "/v1/resolve-many"), &headers, body)?;
    let who = who(&request.who, peer);
    carried_out(async move {
        let store = &**state.semel.store();
        actions::resolve_many(store, &state.audit, request, who, Some(REQUEST_LIMIT), |_| {}).await
    })
    .await
}

pub(super) async fn delete(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: DeleteRequest = read(&state, (peer, "/v1/delete"), &headers, body)?;
    let who = who(&request.who, peer);
    carried_out(
        async move { actions::delete(&**state.semel.store(), &state.audit, request, who).await },
    )
    .await
}

pub(super) async fn sweep(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<SweepView>, ApiError> {
    let request: AuditNote = read(&state, (peer, "/v1/sweep"), &headers, body)?;
    let who = who(&request.who, peer);
    carried_out(async move {
        let store = &**state.semel.store();
        actions::sweep(store, &state.audit, request, who, Some(REQUEST_LIMIT), |_| {}).await
    })
    .await
}

pub(super) async fn reload(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: requests::ReloadRequest = read(&state, (peer, "/v1/reload"), &headers, body)?;
    let who = who(&request.who, peer);
    let approver = Approver { who: who.clone(), why: request.why.clone() };
    let approver = request.accept_identity_change.then_some(approver);
    let act = OperatorAction {
        who,
        act: "reload",
        record: None,
        to: None,
        answer: None,
        why: request.why,
    };
    let reloaded = carried_out(async move {
        let doing = async { Reloaded((state.reload)(approver).await) };
        state.audit.run_logged(act, doing).await.map_err(ActionError::AuditLog)
    });
    match reloaded.await?.0.0 {
        Ok(changed) => Ok(Json(ActionResultView::applied(Some(changed)))),
        Err(wrong) => Err(ApiError::reload_refused(&wrong)),
    }
}

/// The result of a reload.
struct Reloaded(Result<String, String>);

impl AuditResult for Reloaded {
    fn result(&self) -> String {
        match &self.0 {
            Ok(_) => "applied".to_owned(),
            Err(wrong) => format!("failed: {wrong}"),
        }
    }
}

/// Lets an operator in, and reads what is to be done.
fn read<T: DeserializeOwned>(
    state: &ApiState,
    (peer, path): (SocketAddr, &str),
    headers: &HeaderMap,
    body: BodyResult,
) -> Result<T, ApiError> {
    if !state.tokens.can_change() {
        return Err(ApiError::read_only());
    }
    let credential = state.authorize(headers, Permission::Operations, peer, path);
    credential.map_err(|error| match error.status() {
        401 => ApiError::operator_token_missing(),
        _ => error,
    })?;
    if !has_json(headers) {
        return Err(ApiError::not_json());
    }
    let body = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large("The body is larger than 2 MiB."),
        _ => ApiError::malformed("the body did not arrive"),
    })?;
    json_object::from_slice(&body).map_err(|error| ApiError::malformed(&error.to_string()))
}

/// The token says that it is an operator; which one, only the operator's own word says.
fn who(said: &str, peer: SocketAddr) -> String {
    let said = said.trim();
    let said = match said.get(..said.floor_char_boundary(WHO_BYTES_MAX)).unwrap_or_default() {
        "" => "unnamed",
        said => said,
    };
    format!("{said} (by operator token, from {})", peer.ip())
}

/// Carries an act to its end in a task of its own.
async fn carried_out<T: Send + 'static>(
    act: impl Future<Output = Result<T, ActionError>> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    match tokio::spawn(act).await {
        Ok(done) => Ok(Json(done?)),
        Err(_) => Err(ApiError::request_timeout()),
    }
}
