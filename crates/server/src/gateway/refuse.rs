//! What the gateway itself answers to requests that are none.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use semel::core::ErrorType;
use semel_tower::header::{SHOULD_RETRY, STRIPE_SHOULD_RETRY};

/// A request that is wrong as HTTP.
pub(crate) fn wrong(status: StatusCode, detail: &str) -> Response<Full<Bytes>> {
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
    // The same request would be refused again, unless it only came too slowly.
    let should_retry = if status == StatusCode::REQUEST_TIMEOUT { "true" } else { "false" };
    for name in [SHOULD_RETRY, STRIPE_SHOULD_RETRY] {
        headers.insert(name, HeaderValue::from_static(should_retry));
    }
    // Whoever sends this may send anything next.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
