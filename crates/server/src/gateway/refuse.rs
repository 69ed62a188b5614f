//! What the gateway itself answers: to requests that no route guards, and to those that are none.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use semel::core::Problem;
use semel_tower::header::IDEMPOTENCY_PROBLEM;

/// A problem of the contract.
pub(crate) fn problem(problem: Problem) -> Response<Full<Bytes>> {
    let status = StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let mut response = document(status, problem.document(None));
    let slug = HeaderValue::from_static(problem.slug());
    response.headers_mut().insert(IDEMPOTENCY_PROBLEM, slug);
    response
}

/// A request that is wrong as HTTP.
pub(crate) fn wrong(status: StatusCode, detail: &str) -> Response<Full<Bytes>> {
    let title = status.canonical_reason().unwrap_or("Bad Request");
    let code = status.as_u16();
    let text = serde_json::json!({
        "type": "about:blank", "title": title, "status": code, "detail": detail,
    });
    let mut response = document(status, text.to_string());
    // Whoever sends this may send anything next.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn document(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
