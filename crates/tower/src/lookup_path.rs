//! The path under which callers look up their operations.

use std::{error, fmt, str::FromStr};

use http::Method;

/// The place of the key in a path.
const PLACEHOLDER: &str = "{key}";

/// The path under which callers look up their operations: `/idempotency/{key}`, with the key as one
/// percent-encoded segment.
///
/// ```
/// use semel_tower::LookupPath;
///
/// assert!("/idempotency/{key}".parse::<LookupPath>().is_ok());
/// assert!("/idempotency".parse::<LookupPath>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupPath {
    before: Box<str>,
    after: Box<str>,
}

/// A path without one segment `{key}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupPathError;

impl fmt::Display for LookupPathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not a path with one segment `{key}`; write \"/idempotency/{key}\"")
    }
}

impl error::Error for LookupPathError {}

impl FromStr for LookupPath {
    type Err = LookupPathError;

    fn from_str(text: &str) -> Result<Self, LookupPathError> {
        let (before, after) = text.split_once(PLACEHOLDER).ok_or(LookupPathError)?;
        let plain = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte))
        };
        let is_segment = before.ends_with('/') && (after.is_empty() || after.starts_with('/'));
        if !is_segment || !before.starts_with('/') || !plain(before) || !plain(after) {
            return Err(LookupPathError);
        }
        Ok(Self { before: before.into(), after: after.into() })
    }
}

impl fmt::Display for LookupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{PLACEHOLDER}{}", self.before, self.after)
    }
}

impl LookupPath {
    /// Whether a request is a look-up.
    #[must_use]
    pub fn takes(&self, method: &Method, path: &str) -> bool {
        *method == Method::GET && self.key_of(path).is_some()
    }

    /// The encoded key in a path.
    pub(crate) fn key_of<'p>(&self, path: &'p str) -> Option<&'p str> {
        let key = path.strip_prefix(&*self.before)?.strip_suffix(&*self.after)?;
        (!key.is_empty() && !key.contains('/')).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_segment_for_the_key() {
        let path: LookupPath = "/v1/idempotency/{key}".parse().unwrap();
        assert_eq!(path.to_string(), "/v1/idempotency/{key}");
        assert_eq!(path.key_of("/v1/idempotency/a%2Fb"), Some("a%2Fb"));
        for other in ["/v1/idempotency/", "/v1/idempotency/a/b", "/idempotency/a", "/"] {
            assert_eq!(path.key_of(other), None, "{other}");
        }
        let inner: LookupPath = "/keys/{key}/answer".parse().unwrap();
        assert!(inner.takes(&Method::GET, "/keys/a/answer"));
        assert!(!inner.takes(&Method::POST, "/keys/a/answer"));
        assert!(!inner.takes(&Method::GET, "/keys//answer"));
        for text in ["", "/", "{key}", "/a{key}", "/{key}b", "/{key}/{key}", "/a?b={key}"] {
            assert_eq!(text.parse::<LookupPath>(), Err(LookupPathError), "{text}");
        }
    }
}
