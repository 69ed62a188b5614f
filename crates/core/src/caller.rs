//! Caller identity. Each caller has its own keys.

use std::{fmt, sync::Arc};

/// Maximum length of a caller name, in bytes.
pub const CALLER_BYTES_MAX: usize = 255;

/// The sender of a request: a tenant, a user or an API credential. The HTTP layer hashes
/// credentials; they are never stored in clear text.
///
/// ```
/// use semel_core::Caller;
///
/// let merchant = Caller::new("merchant-7")?;
/// assert_ne!(merchant, Caller::anonymous());
/// assert!(Caller::new("").is_err());
/// # Ok::<(), semel_core::CallerError>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Caller(Arc<str>);

/// Error: a text is not a valid caller name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallerError {
    /// An empty name; use [`Caller::anonymous`] where the route allows it.
    #[error("a caller's name is empty")]
    Empty,
    /// Longer than [`CALLER_BYTES_MAX`].
    #[error("a caller's name has {0} bytes; at most {CALLER_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// A control character.
    #[error("a caller's name has a control character at byte {0}")]
    Control(usize),
}

impl Caller {
    /// A named caller: 1 to 255 bytes of UTF-8 without control characters.
    pub fn new(name: &str) -> Result<Self, CallerError> {
        if name.is_empty() {
            return Err(CallerError::Empty);
        }
        if name.len() > CALLER_BYTES_MAX {
            return Err(CallerError::TooLong(name.len()));
        }
        if name.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
            return Ok(Self(name.into()));
        }
        match name.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(CallerError::Control(at)),
            None => Ok(Self(name.into())),
        }
    }

    /// The anonymous caller. It is stored as the empty text, which is not a valid name.
    #[must_use]
    pub fn anonymous() -> Self {
        Self("".into())
    }

    /// Whether this is [`Caller::anonymous`].
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.0.is_empty()
    }

    /// The name; empty for the anonymous caller.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses a stored text, as returned by [`Caller::as_str`].
    pub fn from_stored(name: &str) -> Result<Self, CallerError> {
        if name.is_empty() { Ok(Self::anonymous()) } else { Self::new(name) }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_anonymous() { "anonymous" } else { &self.0 })
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Caller({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_a_bounded_printable_name() {
        assert_eq!(Caller::new(""), Err(CallerError::Empty));
        assert_eq!(Caller::new(&"x".repeat(256)), Err(CallerError::TooLong(256)));
        assert_eq!(Caller::new("a\nb"), Err(CallerError::Control(1)));
        assert_eq!(Caller::new("Zoë GmbH").unwrap().as_str(), "Zoë GmbH");
    }

    #[test]
    fn a_caller_named_anonymous_is_not_the_anonymous_caller() {
        assert_ne!(Caller::new("anonymous").unwrap(), Caller::anonymous());
    }

    #[test]
    fn a_stored_caller_is_read_back() {
        for caller in [Caller::anonymous(), Caller::new("m").unwrap()] {
            assert_eq!(Caller::from_stored(caller.as_str()).unwrap(), caller);
        }
    }
}
