//! A reply of the service API, alone or in a batch.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use semel::core::{Dialect, OnUnknown, Problem, RetryContext};
use semel_tower::add_retry_advice;

use crate::api_error::ApiError;

/// The reply to one call.
#[derive(Clone, Debug)]
pub(super) struct ServiceReply {
    status: u16,
    /// A JSON document.
    body: String,
    /// Whether to send the same call again, and when; `None` for a success.
    retry: Option<RetryAdvice>,
}

#[derive(Clone, Copy, Debug)]
enum RetryAdvice {
    Never,
    After(Duration),
}

impl ServiceReply {
    /// A success with this document.
    pub(super) const fn done(body: String) -> Self {
        Self { status: 200, body, retry: None }
    }

    /// A problem, with a more specific detail if one is given.
    pub(super) fn problem(problem: Problem, detail: Option<&str>) -> Self {
        let after = problem.retry_after(RetryContext::guarded(OnUnknown::Hold));
        let retry = Some(after.map_or(RetryAdvice::Never, RetryAdvice::After));
        Self { status: problem.status(), body: Dialect::IETF.document(problem, detail), retry }
    }

    /// The reply as an element of a batch.
    pub(super) fn element(&self) -> String {
        let Self { status, body, retry } = self;
        let advice = match retry {
            None => String::new(),
            Some(RetryAdvice::Never) => ",\"should_retry\":false".to_owned(),
            Some(RetryAdvice::After(after)) => {
                format!(",\"should_retry\":true,\"retry_after_ms\":{}", after.as_millis())
            }
        };
        format!("{{\"status\":{status},\"body\":{body}{advice}}}")
    }
}

impl From<ApiError> for ServiceReply {
    fn from(error: ApiError) -> Self {
        let retry = Some(error.retry_after().map_or(RetryAdvice::Never, RetryAdvice::After));
        Self { status: error.status(), body: error.document(), retry }
    }
}

impl IntoResponse for ServiceReply {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let kind = match self.retry {
            None => "application/json",
            Some(_) => "application/problem+json",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        match self.retry {
            None => {}
            Some(RetryAdvice::Never) => add_retry_advice(headers, None),
            Some(RetryAdvice::After(after)) => add_retry_advice(headers, Some(after)),
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
