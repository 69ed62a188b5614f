//! The error behind an outcome, as the operation gave it or as it was told.

use std::{error::Error, fmt};

/// The error that an operation gave.
///
/// Of a run of this very call it is the error itself, to be [downcast](Reason::downcast_ref); of a
/// run that the call joined it is the text. It is an [`Error`], so a caller can pass it on with
/// `?`.
pub struct Reason(pub(super) Box<dyn Error + Send + Sync>);

impl Reason {
    /// What an execution that was joined had to say.
    pub(super) fn told(text: String) -> Self {
        Self(text.into())
    }

    /// The error as the type it had, if this very call ran the operation.
    #[must_use]
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }

    /// The error and its causes in one line.
    pub(super) fn in_full(&self) -> String {
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Reason {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
