//! Problem responses to invalid requests, and to requests that may not begin.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, header};
use http_body_util::{Either, Full};
use semel::core::{ErrorType, Problem, RetryContext};
use semel_tower::{
    header::{SHOULD_RETRY, STRIPE_SHOULD_RETRY},
    is_grpc_request, refusal,
};

use crate::forward::response_body::GatewayBody;

/// The response to a request that is invalid as HTTP.
pub(crate) fn response(status: StatusCode, detail: &str) -> Response<Full<Bytes>> {
    let title = status.canonical_reason().unwrap_or("Bad Request");
    let code = status.as_u16();
    let text = serde_json::json!({
        "type": "about:blank", "title": title, "status": code, "detail": detail,
        "error": {
            "type": ErrorType::for_status(code).as_str(),
            "code": title.to_ascii_lowercase().replace([' ', '-'], "_"),
            "message": detail,
        },
    });
    let mut response = Response::new(Full::new(Bytes::from(text.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // The same request would be refused again, unless it was only too slow.
    let should_retry = if status == StatusCode::REQUEST_TIMEOUT { "true" } else { "false" };
    for name in [SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
        headers.insert(name, HeaderValue::from_static(should_retry));
    }
    // The bytes that follow an invalid request cannot be trusted.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A request of a peer that has as many busy connections as it may have. Nothing was done.
pub(crate) fn over_share(version: Version, headers: &HeaderMap) -> Response<GatewayBody> {
    let is_grpc = is_grpc_request(version, headers);
    refusal(Problem::TooManyInFlight, is_grpc, RetryContext::unguarded(false)).map(Either::Left)
}
