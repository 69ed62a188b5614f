//! The refusal of a request: a problem and its details.

use std::borrow::Cow;

use semel::core::Problem;

/// A problem and, where more is known, a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestRefusal {
    pub(crate) problem: Problem,
    pub(crate) detail: Option<Cow<'static, str>>,
}

impl RequestRefusal {
    pub(crate) fn detailed(problem: Problem, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { problem, detail: Some(detail.into()) }
    }
}

impl From<Problem> for RequestRefusal {
    fn from(problem: Problem) -> Self {
        Self { problem, detail: None }
    }
}
