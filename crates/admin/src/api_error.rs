//! Errors of the API, as problem documents like those of the gateway.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use semel::core::{ErrorType, StoreError};
use semel_tower::add_retry_advice;

use super::{
    action_error::ActionError,
    responses::{ErrorMember, ProblemDocument},
};

/// An error response.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    slug: &'static str,
    title: &'static str,
    detail: String,
}

impl ApiError {
    fn new(status: StatusCode, slug: &'static str, title: &'static str, detail: &str) -> Self {
        Self { status, slug, title, detail: detail.to_owned() }
    }

    pub(super) fn not_found() -> Self {
        let detail = "No such path. See /healthz, /readyz, /metrics and /v1/records.";
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        let detail = "Reads use GET, changes use POST.";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "method-not-allowed", "Method is not allowed", detail)
    }

    pub(super) fn malformed(detail: &str) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(status, "request-malformed", "Request is malformed", detail)
    }

    pub(super) fn too_large(detail: &str) -> Self {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "body-too-large", "Request body is too large", detail)
    }

    pub(super) fn not_json() -> Self {
        let detail = "Send the request as JSON, with Content-Type: application/json.";
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, "media-type-unsupported", "Body is not JSON", detail)
    }

    pub(super) fn operator_token_missing() -> Self {
        let detail = "Send the operator token: Authorization: Bearer TOKEN.";
        let status = StatusCode::UNAUTHORIZED;
        Self::new(status, "operator-token-missing", "Operator is not identified", detail)
    }

    pub(super) fn token_missing() -> Self {
        let detail =
            "Send a token that is configured in [[api.token]], as Authorization: Bearer TOKEN.";
        let status = StatusCode::UNAUTHORIZED;
        Self::new(status, "token-missing", "Client is not identified", detail)
    }

    pub(super) fn role_forbidden(name: &str) -> Self {
        let detail = format!("The role of the token `{name}` does not allow this request.");
        Self::new(StatusCode::FORBIDDEN, "role-forbidden", "Role is not sufficient", &detail)
    }

    pub(super) fn scope_forbidden(detail: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "scope-forbidden", "Scope is not allowed", detail)
    }

    pub(super) fn limit_exceeded(detail: &str) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(status, "limit-exceeded", "Setting exceeds its limit", detail)
    }

    pub(super) fn read_only() -> Self {
        let detail = "No operator token is configured, so this API is read-only. Set \
                      operator_token_env in [api], or run the command with --store.";
        Self::new(StatusCode::FORBIDDEN, "read-only", "This listener is read-only", detail)
    }

    pub(super) fn host_not_local() -> Self {
        let detail = "This listener serves the local machine only: use 127.0.0.1 or localhost \
                      as the host.";
        let status = StatusCode::MISDIRECTED_REQUEST;
        Self::new(status, "host-not-local", "Host is not the local machine", detail)
    }

    pub(super) fn token_required_for_remote() -> Self {
        let detail = "This listener is open to other machines, and no operator token is \
            configured: \
                      records are neither shown nor changed. Set operator_token_env or \
                      operator_token_file in [api], or listen on 127.0.0.1.";
        Self::new(
            StatusCode::FORBIDDEN,
            "operator-token-not-configured",
            "Operator token is not configured",
            detail,
        )
    }

    pub(super) fn store_unavailable(detail: &str) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, "store-unavailable", "Idempotency store is unavailable", detail)
    }

    pub(super) fn draining() -> Self {
        let detail = "The server is shutting down and accepts no new requests.";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "Server is draining", detail)
    }

    pub(super) fn request_timeout() -> Self {
        let detail = "The request timed out. An action that was started continues: check the \
            record \
                      and the audit log.";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "request-timeout", "Request timed out", detail)
    }

    pub(super) fn action_failed() -> Self {
        let detail = "The action ended early because of an internal error: check the record and \
                      the audit log.";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "internal-error", "Action failed", detail)
    }

    pub(super) fn record_not_found() -> Self {
        let detail = "There is no record for this scope, caller and key.";
        Self::new(StatusCode::NOT_FOUND, "record-not-found", "There is no such record", detail)
    }

    pub(super) fn reload_refused(detail: &str) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self::new(
            status,
            "configuration-refused",
            "Configuration was rejected; the previous configuration stays in use",
            detail,
        )
    }

    pub(super) fn from_store_error(error: &StoreError) -> Self {
        Self::store_unavailable(&error.to_string())
    }
}

impl From<ActionError> for ApiError {
    fn from(error: ActionError) -> Self {
        match error {
            ActionError::Malformed(detail) => Self::malformed(&detail),
            ActionError::Absent => Self::record_not_found(),
            ActionError::Stale => {
                let (status, title) =
                    (StatusCode::CONFLICT, "Record has changed or its state does not allow this");
                Self::new(status, "record-stale", title, &ActionError::Stale.to_string())
            }
            ActionError::Store(error) => Self::from_store_error(&error),
            ActionError::AuditLog(error) => {
                let (status, title) =
                    (StatusCode::SERVICE_UNAVAILABLE, "Audit log cannot be written");
                Self::new(status, "audit-unavailable", title, &format!("{error:#}"))
            }
        }
    }
}

impl ApiError {
    pub(super) fn status(&self) -> u16 {
        self.status.as_u16()
    }

    pub(super) const fn title(&self) -> &'static str {
        self.title
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// When the client should send the same request again; `None` if it should not.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let is_transient =
            ["store-unavailable", "draining", "request-timeout"].contains(&self.slug);
        is_transient.then_some(Duration::from_secs(1))
    }

    /// The problem document.
    pub(super) fn document(&self) -> String {
        let status = self.status.as_u16();
        let error = ErrorMember {
            kind: ErrorType::for_status(status).as_str(),
            code: self.slug.replace('-', "_"),
            message: self.detail.clone(),
        };
        let document = ProblemDocument {
            kind: format!("urn:semel:problem:{}", self.slug),
            title: self.title.to_owned(),
            status,
            detail: self.detail.clone(),
            error,
        };
        // Serializing strings cannot fail.
        serde_json::to_string(&document).unwrap_or_default()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.document()).into_response();
        let headers = response.headers_mut();
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, problem);
        add_retry_advice(headers, self.retry_after());
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
