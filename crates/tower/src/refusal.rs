//! The refusal of a request: a problem and its details.

use std::borrow::Cow;

use http::HeaderValue;
use semel::core::Problem;

use crate::CallerFailure;

/// A problem and, where more is known, a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub(crate) problem: Problem,
    pub(crate) detail: Option<Cow<'static, str>>,
    /// The `WWW-Authenticate` header.
    pub(crate) challenge: Option<HeaderValue>,
    /// Why the caller was refused.
    pub(crate) caller_failure: Option<CallerFailure>,
}

impl RequestRefusal {
    pub(crate) fn detailed(problem: Problem, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { detail: Some(detail.into()), ..problem.into() }
    }

    /// Whether the keys that verify the caller may arrive soon.
    pub(crate) fn waits_for_keys(&self) -> bool {
        self.caller_failure == Some(CallerFailure::KeysUnavailable)
    }
}

impl From<Problem> for RequestRefusal {
    fn from(problem: Problem) -> Self {
        Self { problem, detail: None, challenge: None, caller_failure: None }
    }
}
