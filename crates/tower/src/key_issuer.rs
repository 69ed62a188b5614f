//! `POST /idempotency-tokens`: issues a key to a caller.

use std::sync::Arc;

use http::{HeaderValue, Response, StatusCode, header, request::Parts};
use jiff::Timestamp;
use semel::core::Problem;
use serde_json::json;

use crate::{
    IssuedKeys,
    body::Body,
    buffered_body::BufferedBody,
    caller::Identified,
    config::{self, LayerConfig},
    issued_key::RecordOwner,
    refusal::RequestRefusal,
};

/// Answers a request for a key.
pub(crate) async fn respond<B>(
    config: Arc<LayerConfig>,
    keys: Arc<IssuedKeys>,
    parts: Parts,
) -> Response<Body<B>> {
    match issue(&config, &keys, &parts).await {
        Ok(response) => response,
        Err(refusal) => config.refuse(config.responder(parts.version, &parts.headers), &refusal),
    }
}

async fn issue<B>(
    config: &LayerConfig,
    keys: &IssuedKeys,
    parts: &Parts,
) -> Result<Response<Body<B>>, RequestRefusal> {
    let Identified { caller, shared, .. } = config.identify(parts).await?;
    if shared {
        let detail = "callers that are anonymous or named by their host alone share their keys, so \
                      no key is issued to them";
        return Err(RequestRefusal::detailed(Problem::CallerUnidentified, detail));
    }
    let scope = config.scope.as_str();
    let owner = RecordOwner { scope, caller: caller.as_str() };
    let no_randomness = || {
        let detail = "the system has no randomness, so no key can be issued now";
        RequestRefusal::detailed(Problem::StoreUnavailable, detail)
    };
    let (token, expires_at) = keys.issue(&owner, config::now()).ok_or_else(no_randomness)?;
    let expires_at = Timestamp::try_from(expires_at).map(|at| at.to_string()).ok();
    let document = json!({ "token": token, "scope": scope, "expires_at": expires_at });
    let body = BufferedBody::new(document.to_string().into(), None);
    let mut response = Response::new(Body::buffered(body));
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
