//! Errors around an operation, as opposed to how the operation ended.

use std::{error::Error, fmt};

use semel_core::{OnUnknown, Problem, RetryContext};

type ErrorSource = Box<dyn Error + Send + Sync>;

/// There is no outcome. [`kind`](Self::kind) says why.
#[derive(Debug)]
pub struct OnceError {
    kind: OnceErrorKind,
    source: Option<ErrorSource>,
}

/// Why there is no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnceErrorKind {
    /// The text is not a valid scope. Nothing was done.
    Scope,
    /// The value to fingerprint cannot be written as canonical JSON. Nothing was done.
    Fingerprint,
    /// The store is unavailable, so nothing was done. Call again later with the same key.
    StoreUnavailable,
    /// Too much is running already, so nothing was done. Call again later with the same key.
    TooManyInFlight,
    /// The operation ran once, and its value was too large to be recorded or could not be written.
    /// It will not run again; read the result where the operation left it.
    NotRetained,
    /// The operation ran once, but the recorded value cannot be read as the requested type: another
    /// version of the program wrote it, or another operation. It will not run again.
    Unreadable,
    /// The outcome was unknown, and by `on_unknown = fail` that counts as a failure. It is final
    /// under this key.
    Failed,
    /// The engine refused for another reason. Nothing was done.
    Refused,
}

impl OnceError {
    pub(crate) const fn new(kind: OnceErrorKind) -> Self {
        Self { kind, source: None }
    }

    pub(crate) fn because(kind: OnceErrorKind, source: impl Into<ErrorSource>) -> Self {
        Self { kind, source: Some(source.into()) }
    }

    /// What kind of error it is.
    #[must_use]
    pub const fn kind(&self) -> OnceErrorKind {
        self.kind
    }

    /// Whether nothing was done and the same call may succeed later.
    #[must_use]
    pub const fn retry_later(&self) -> bool {
        // None of these problems depends on the route's setting for unknown outcomes.
        let context = RetryContext::guarded(OnUnknown::Hold);
        match self.kind.problem() {
            Some(problem) => problem.should_retry(context),
            None => false,
        }
    }
}

impl OnceErrorKind {
    /// The problem that an HTTP client would get.
    const fn problem(self) -> Option<Problem> {
        match self {
            Self::StoreUnavailable => Some(Problem::StoreUnavailable),
            Self::TooManyInFlight => Some(Problem::TooManyInFlight),
            Self::NotRetained => Some(Problem::ResponseNotRetained),
            Self::Failed => Some(Problem::OperationFailed),
            Self::Scope | Self::Fingerprint | Self::Unreadable | Self::Refused => None,
        }
    }
}

impl fmt::Display for OnceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            OnceErrorKind::Scope => "the scope has no valid name",
            OnceErrorKind::Fingerprint => "the fingerprint cannot be made",
            OnceErrorKind::StoreUnavailable => Problem::StoreUnavailable.title(),
            OnceErrorKind::TooManyInFlight => Problem::TooManyInFlight.title(),
            OnceErrorKind::NotRetained => "the operation ran once, but its result was not retained",
            OnceErrorKind::Unreadable => {
                "the operation ran once, but what it gave is recorded as something else than the \
                 type asked for; has the type changed?"
            }
            OnceErrorKind::Failed => {
                "the outcome of the operation is unknown, which by its policy is a failure"
            }
            OnceErrorKind::Refused => "the engine refused the operation",
        })
    }
}

impl Error for OnceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| -> &(dyn Error + 'static) { source })
    }
}
