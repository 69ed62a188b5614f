//! Which family of operations a key belongs to.

use std::{fmt, sync::Arc};

/// The longest name of a scope, in bytes.
pub const SCOPE_BYTES_MAX: usize = 64;

/// A family of operations with its own policy: `payments`, `signup`, `webhooks.stripe`.
///
/// A scope is written by an engineer, not by a client, and becomes a metric label; so it is short
/// and plain: 1 to 64 of `a-z`, `0-9`, `.`, `_`, `-`, beginning with a letter or a digit.
///
/// ```
/// use semel_core::Scope;
///
/// assert!(Scope::new("webhooks.stripe").is_ok());
/// assert!(Scope::new("Payments!").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(Arc<str>);

/// The text cannot name a scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot name a scope: use 1 to {SCOPE_BYTES_MAX} of a-z, 0-9, `.`, `_` and `-`, \
     beginning with a letter or a digit"
)]
pub struct ScopeError(String);

impl Scope {
    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, ScopeError> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let good = name.len() <= SCOPE_BYTES_MAX
            && name.bytes().next().is_some_and(plain)
            && name.bytes().all(|byte| plain(byte) || b"._-".contains(&byte));
        if good {
            Ok(Self(name.into()))
        } else {
            Err(ScopeError(name.chars().take(SCOPE_BYTES_MAX).collect()))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_short_and_plain() {
        for good in ["payments", "webhooks.stripe", "7-days", "a_b"] {
            assert_eq!(Scope::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".a", "-", "Payments", "a b", "a/b", "é", &"x".repeat(65)] {
            assert!(Scope::new(bad).is_err(), "{bad}");
        }
    }
}
