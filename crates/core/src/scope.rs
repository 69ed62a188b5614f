//! Which family of operations a key belongs to.

use std::{fmt, sync::Arc};

/// The longest name of a scope that an engineer may choose, in bytes.
pub const SCOPE_BYTES_MAX: usize = 64;

/// What stands after the name of a scope that is only observed.
const OBSERVED: &str = "~observed";

/// A family of operations with its own policy: `payments`, `signup`, `webhooks.stripe`.
///
/// A scope is written by an engineer, not by a client, and becomes a metric label; so it is short
/// and plain: 1 to 64 of `a-z`, `0-9`, `.`, `_`, `-`, beginning with a letter or a digit. What is
/// remembered while a scope is only observed has a scope of its own, with `~observed` after the
/// name.
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
        let chosen = name.strip_suffix(OBSERVED).unwrap_or(name);
        let good = chosen.len() <= SCOPE_BYTES_MAX
            && chosen.bytes().next().is_some_and(plain)
            && chosen.bytes().all(|byte| plain(byte) || b"._-".contains(&byte));
        if good {
            Ok(Self(name.into()))
        } else {
            Err(ScopeError(name.chars().take(SCOPE_BYTES_MAX).collect()))
        }
    }

    /// Where that is remembered which is only observed, so that it never meets what is guarded.
    ///
    /// ```
    /// use semel_core::Scope;
    ///
    /// let observed = Scope::new("payments")?.observed();
    /// assert_eq!(observed.as_str(), "payments~observed");
    /// assert_eq!(observed.observed(), observed);
    /// # Ok::<(), semel_core::ScopeError>(())
    /// ```
    #[must_use]
    pub fn observed(&self) -> Self {
        if self.is_observed() { self.clone() } else { Self(format!("{self}{OBSERVED}").into()) }
    }

    /// The scope of what is guarded, where this one is [for what is only
    /// observed](Scope::observed).
    ///
    /// ```
    /// use semel_core::Scope;
    ///
    /// let scope = Scope::new("payments")?;
    /// assert_eq!(scope.observed().guarded(), scope);
    /// # Ok::<(), semel_core::ScopeError>(())
    /// ```
    #[must_use]
    pub fn guarded(&self) -> Self {
        Self(self.0.strip_suffix(OBSERVED).unwrap_or(&self.0).into())
    }

    /// Whether this is a scope [for what is only observed](Scope::observed).
    #[must_use]
    pub fn is_observed(&self) -> bool {
        self.0.ends_with(OBSERVED)
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
        for bad in ["", ".a", "-", "Payments", "a b", "a/b", "é", "a~b", &"x".repeat(65)] {
            assert!(Scope::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_observed_scope_is_distinct_and_can_be_parsed() {
        let longest = Scope::new(&"x".repeat(SCOPE_BYTES_MAX)).unwrap();
        for scope in [longest, Scope::new("payments").unwrap()] {
            let observed = scope.observed();
            assert!(observed.is_observed() && !scope.is_observed());
            assert_eq!(Scope::new(observed.as_str()), Ok(observed));
        }
        for bad in ["~observed", "a~observed~observed", "a~observed.b"] {
            assert!(Scope::new(bad).is_err(), "{bad}");
        }
    }
}
