//! What changes something. Each act goes on if whoever asked for it hangs up.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Extension, State, rejection::BytesRejection},
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;

use super::{
    ApiState,
    acts::{self, ActError},
    form::{self, Delete, Plain, Resolve, ResolveMany},
    refusal::Refusal,
    view::{DoneView, ManyView, SweepView},
};
use crate::{
    ops::audit::{Act, Audited},
    route_identity::Acceptor,
};

/// How long one request to sweep, or to resolve many records, goes on. The client asks again for
/// the rest.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long a name in the audit log may be.
const WHO_BYTES_MAX: usize = 200;

type Body = Result<Bytes, BytesRejection>;
type Shared = State<Arc<ApiState>>;
type Peer = Extension<SocketAddr>;

pub(super) async fn resolve(
    State(state): Shared,
    Extension(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<DoneView>, Refusal> {
    let form: Resolve = read(&state, (peer, "/v1/resolve"), &headers, body)?;
    let who = who(&form.who, peer);
    carried_out(async move { acts::resolve(&**state.semel.store(), &state.audit, form, who).await })
        .await
}

pub(super) async fn resolve_many(
    State(state): Shared,
    Extension(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<ManyView>, Refusal> {
    let form: ResolveMany = read(&state, (peer, "/v1/resolve-many"), &headers, body)?;
    let who = who(&form.who, peer);
    carried_out(async move {
        let store = &**state.semel.store();
        acts::resolve_many(store, &state.audit, form, who, Some(REQUEST_LIMIT), |_| {}).await
    })
    .await
}

pub(super) async fn delete(
    State(state): Shared,
    Extension(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<DoneView>, Refusal> {
    let form: Delete = read(&state, (peer, "/v1/delete"), &headers, body)?;
    let who = who(&form.who, peer);
    carried_out(async move { acts::delete(&**state.semel.store(), &state.audit, form, who).await })
        .await
}

pub(super) async fn sweep(
    State(state): Shared,
    Extension(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<SweepView>, Refusal> {
    let form: Plain = read(&state, (peer, "/v1/sweep"), &headers, body)?;
    let who = who(&form.who, peer);
    carried_out(async move {
        let store = &**state.semel.store();
        acts::sweep(store, &state.audit, form, who, Some(REQUEST_LIMIT), |_| {}).await
    })
    .await
}

pub(super) async fn reload(
    State(state): Shared,
    Extension(peer): Peer,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<DoneView>, Refusal> {
    let form: form::Reload = read(&state, (peer, "/v1/reload"), &headers, body)?;
    let who = who(&form.who, peer);
    let acceptor = Acceptor { who: who.clone(), why: form.why.clone() };
    let acceptor = form.accept_identity_change.then_some(acceptor);
    let act = Act { who, act: "reload", record: None, to: None, answer: None, why: form.why };
    let reloaded = carried_out(async move {
        let doing = async { Reloaded((state.reload)(acceptor).await) };
        state.audit.around(act, doing).await.map_err(ActError::Audit)
    });
    match reloaded.await?.0.0 {
        Ok(changed) => Ok(Json(DoneView::applied(Some(changed)))),
        Err(wrong) => Err(Refusal::reload_refused(&wrong)),
    }
}

/// What became of a changed configuration.
struct Reloaded(Result<String, String>);

impl Audited for Reloaded {
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
    body: Body,
) -> Result<T, Refusal> {
    if state.token.is_none() {
        return Err(Refusal::read_only());
    }
    if !state.is_operator(headers) {
        state.turn_away(peer, path);
        return Err(Refusal::token_missing());
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    if !kind.trim().eq_ignore_ascii_case("application/json") {
        return Err(Refusal::not_json());
    }
    let body = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refusal::too_large(),
        _ => Refusal::malformed("the body did not arrive"),
    })?;
    serde_json::from_slice(&body).map_err(|error| Refusal::malformed(&error.to_string()))
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
    act: impl Future<Output = Result<T, ActError>> + Send + 'static,
) -> Result<Json<T>, Refusal> {
    match tokio::spawn(act).await {
        Ok(done) => Ok(Json(done?)),
        Err(_) => Err(Refusal::too_slow()),
    }
}
