//! Why a request goes no further: a problem, and what exactly it was here.

use std::borrow::Cow;

use semel::core::Problem;

/// A problem and, where more is known than the problem says, a detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) problem: Problem,
    pub(crate) detail: Option<Cow<'static, str>>,
}

impl Refusal {
    pub(crate) fn detailed(problem: Problem, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { problem, detail: Some(detail.into()) }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self { problem, detail: None }
    }
}
