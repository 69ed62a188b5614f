//! Handlers of the operator actions. An action continues if its client disconnects.

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
const BATCH_DURATION_MAX: Duration = Duration::from_secs(10);

/// Maximum length of an operator's name in the audit log.
pub(super) const AUTHOR_BYTES_MAX: usize = 200;

type BodyResult = Result<Bytes, BytesRejection>;
type ApiStateExtractor = State<Arc<ApiState>>;
type PeerExtension = Extension<SocketAddr>;

pub(super) async fn resolve(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: ResolveRequest =
        authorize_and_parse(&state, (peer, "/v1/resolve"), &headers, body)?;
    let who = audit_author(&request.who, peer);
    run_detached(async move {
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
    let request: ResolveManyRequest =
        authorize_and_parse(&state, (peer, "/v1/resolve-many"), &headers, body)?;
    let who = audit_author(&request.who, peer);
    run_detached(async move {
        let store = &**state.semel.store();
        actions::resolve_many(store, &state.audit, request, who, Some(BATCH_DURATION_MAX), |_| {})
            .await
    })
    .await
}

pub(super) async fn delete(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: DeleteRequest = authorize_and_parse(&state, (peer, "/v1/delete"), &headers, body)?;
    let who = audit_author(&request.who, peer);
    run_detached(async move {
        actions::delete(&**state.semel.store(), &state.audit, request, who).await
    })
    .await
}

pub(super) async fn sweep(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<SweepView>, ApiError> {
    let request: AuditNote = authorize_and_parse(&state, (peer, "/v1/sweep"), &headers, body)?;
    let who = audit_author(&request.who, peer);
    run_detached(async move {
        let store = &**state.semel.store();
        actions::sweep(store, &state.audit, request, who, Some(BATCH_DURATION_MAX), |_| {}).await
    })
    .await
}

pub(super) async fn reload(
    State(state): ApiStateExtractor,
    Extension(peer): PeerExtension,
    headers: HeaderMap,
    body: BodyResult,
) -> Result<Json<ActionResultView>, ApiError> {
    let request: requests::ReloadRequest =
        authorize_and_parse(&state, (peer, "/v1/reload"), &headers, body)?;
    let who = audit_author(&request.who, peer);
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
    let reloaded = run_detached(async move {
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

/// Authorizes the operator and parses the request body.
fn authorize_and_parse<T: DeserializeOwned>(
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

/// The token authenticates an operator but not a person; the name is what the client claims.
fn audit_author(said: &str, peer: SocketAddr) -> String {
    let said = said.trim();
    let said = match said.get(..said.floor_char_boundary(AUTHOR_BYTES_MAX)).unwrap_or_default() {
        "" => "unnamed",
        said => said,
    };
    format!("{said} (by operator token, from {})", peer.ip())
}

/// Runs an action in a separate task, so that it continues if the client disconnects.
async fn run_detached<T: Send + 'static>(
    act: impl Future<Output = Result<T, ActionError>> + Send + 'static,
) -> Result<Json<T>, ApiError> {
    match tokio::spawn(act).await {
        Ok(done) => Ok(Json(done?)),
        // The action panicked.
        Err(_) => Err(ApiError::action_failed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_action_that_panics_is_an_internal_error() {
        let ended = run_detached(async {
            let steps: Vec<()> = Vec::new();
            // An error of the program: there is no first step.
            let () = *steps.first().unwrap();
            Ok(())
        });
        assert_eq!(ended.await.unwrap_err().status(), 500);
    }
}
