//! What the listener refuses, as problem documents like those of the gateway.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use semel::core::{ErrorType, StoreError};

use super::{
    acts::ActError,
    view::{ErrorMember, Problem},
};

/// Why a request is not answered.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    slug: &'static str,
    title: &'static str,
    detail: String,
}

impl Refusal {
    fn new(status: StatusCode, slug: &'static str, title: &'static str, detail: &str) -> Self {
        Self { status, slug, title, detail: detail.to_owned() }
    }

    pub(super) fn not_found() -> Self {
        let detail = "There is nothing here. See /healthz, /readyz, /metrics and /v1/records.";
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        let detail = "What is read takes GET, what changes something takes POST.";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "method-not-allowed", "Method is not allowed", detail)
    }

    pub(super) fn malformed(detail: &str) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(status, "request-malformed", "Request is malformed", detail)
    }

    pub(super) fn too_large() -> Self {
        let detail = "The body is larger than 2 MiB.";
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "body-too-large", "Request body is too large", detail)
    }

    pub(super) fn not_json() -> Self {
        let detail = "Send the act as JSON, with Content-Type: application/json.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "media-type-unsupported", "Body is not JSON", detail)
    }

    pub(super) fn token_missing() -> Self {
        let detail = "Send the operator's token: Authorization: Bearer TOKEN.";
        let status = StatusCode::UNAUTHORIZED;
        Self::new(status, "operator-token-missing", "Operator is not identified", detail)
    }

    pub(super) fn read_only() -> Self {
        let detail = "No operator's token is configured, so nothing can be changed here. \
                      Set operator_token_env in [api], or act on the store itself with --store.";
        Self::new(StatusCode::FORBIDDEN, "read-only", "This listener is read-only", detail)
    }

    pub(super) fn foreign_host() -> Self {
        let detail = "This listener serves its own machine only: ask it by its address, such as \
                      127.0.0.1, or as localhost.";
        let status = StatusCode::MISDIRECTED_REQUEST;
        Self::new(status, "host-foreign", "Host is not this machine", detail)
    }

    pub(super) fn exposed() -> Self {
        let detail = "This listener is open to other machines, and no operator's token is \
                      configured: records are neither shown nor changed. Set operator_token_env or \
                      operator_token_file in [api], or listen on 127.0.0.1.";
        Self::new(StatusCode::FORBIDDEN, "records-closed", "Records are not shown here", detail)
    }

    pub(super) fn store_unavailable(detail: &str) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, "store-unavailable", "Idempotency store is unavailable", detail)
    }

    pub(super) fn draining() -> Self {
        let detail = "The server finishes what runs and takes nothing new.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Server is draining", detail)
    }

    pub(super) fn too_slow() -> Self {
        let detail = "It took longer than the listener waits. An act that was begun goes on: \
                      look at its record, and at the audit log.";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "too-slow", "It took too long", detail)
    }

    pub(super) fn absent() -> Self {
        let detail = "Nothing is remembered under this scope, caller and key.";
        Self::new(StatusCode::NOT_FOUND, "record-absent", "There is no such record", detail)
    }

    pub(super) fn reload_refused(detail: &str) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "configuration-refused", "The old configuration goes on", detail)
    }

    pub(super) fn of_store(error: &StoreError) -> Self {
        Self::store_unavailable(&error.to_string())
    }
}

impl From<ActError> for Refusal {
    fn from(error: ActError) -> Self {
        match error {
            ActError::Malformed(detail) => Self::malformed(&detail),
            ActError::Absent => Self::absent(),
            ActError::Stale => {
                let (status, title) = (StatusCode::CONFLICT, "Record is not what was seen");
                Self::new(status, "record-stale", title, &ActError::Stale.to_string())
            }
            ActError::Store(error) => Self::of_store(&error),
            ActError::Audit(error) => {
                let (status, title) = (StatusCode::SERVICE_UNAVAILABLE, "Nothing was done");
                Self::new(status, "audit-unavailable", title, &format!("{error:#}"))
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status.as_u16();
        let error = ErrorMember {
            kind: ErrorType::for_status(status).as_str(),
            code: self.slug.replace('-', "_"),
            message: self.detail.clone(),
        };
        let document = Problem {
            kind: format!("urn:semel:problem:{}", self.slug),
            title: self.title.to_owned(),
            status,
            detail: self.detail,
            error,
        };
        let mut response = (self.status, axum::Json(document)).into_response();
        let headers = response.headers_mut();
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem);
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
