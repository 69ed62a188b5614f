//! HTML documents with their headers, and redirects.

use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use maud::{DOCTYPE, Markup, html};

use super::assets;

/// Nothing but our own style sheet and script, and no page that frames this one.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A whole document with its headers.
pub(super) fn respond(status: StatusCode, title: &str, content: &Markup) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Semel" }
                link rel="icon" href="icon.svg";
                link rel="stylesheet" href=(assets::STYLE_PATH.as_str());
                script src=(assets::SCRIPT_PATH.as_str()) defer {}
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                (content)
            }
        }
    };
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP)),
        (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ];
    (status, headers, document.into_string()).into_response()
}

/// Sends the browser to another page by GET. The path is relative, so that it is right under any
/// prefix.
pub(super) fn redirect(path: &str) -> Response {
    let path = if path.is_empty() { "./" } else { path };
    match HeaderValue::from_str(path) {
        Ok(location) => (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response(),
        Err(_) => StatusCode::BAD_REQUEST.into_response(),
    }
}
