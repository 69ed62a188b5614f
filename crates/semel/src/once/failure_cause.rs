//! The error behind an outcome, as a value or as text.

use std::{error::Error, fmt};

/// The error that an operation returned.
///
/// If this call ran the operation, it is the error itself, to be
/// [downcast](FailureCause::downcast_ref). For a joined execution it is the text. It is an
/// [`Error`], so a caller can return it with `?`.
pub struct FailureCause(pub(super) Box<dyn Error + Send + Sync>);

impl FailureCause {
    /// The error text of a joined execution.
    pub(super) fn from_text(text: String) -> Self {
        Self(text.into())
    }

    /// The error as its own type, if this call ran the operation.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }

    /// The error and its causes in one line.
    pub(super) fn with_sources(&self) -> String {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for FailureCause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
