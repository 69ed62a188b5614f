//! The refusal of a request by a caller rule.

use std::borrow::Cow;

use http::HeaderValue;
use semel::core::Problem;

use crate::refusal::{CallerFailure, RequestRefusal};

/// Why a rule refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallerRefusal {
    /// `None` if no specific reason applies: the caller is not identified.
    pub(super) failure: Option<CallerFailure>,
    detail: Cow<'static, str>,
}

impl CallerRefusal {
    pub(super) fn new(failure: CallerFailure, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { failure: Some(failure), detail: detail.into() }
    }
}

impl<T: Into<Cow<'static, str>>> From<T> for CallerRefusal {
    fn from(detail: T) -> Self {
        Self { failure: None, detail: detail.into() }
    }
}

impl From<CallerRefusal> for RequestRefusal {
    fn from(refusal: CallerRefusal) -> Self {
        let CallerRefusal { failure, detail } = refusal;
        let problem = failure.map_or(Problem::CallerUnidentified, CallerFailure::problem);
        // RFC 6750, section 3.1: the challenge to a request without a token has no error code.
        let challenge = match failure {
            Some(CallerFailure::TokenMissing) => Some("Bearer realm=\"semel\"".to_owned()),
            Some(_) if problem == Problem::CallerUnverified => {
                Some(format!("Bearer error=\"invalid_token\", error_description=\"{detail}\""))
            }
            Some(_) | None => None,
        };
        let challenge = challenge.and_then(|text| HeaderValue::try_from(text).ok());
        Self { problem, detail: Some(detail), challenge, caller_failure: failure, limit: None }
    }
}
