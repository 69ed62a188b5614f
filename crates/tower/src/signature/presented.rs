//! The signatures that a request presents, whatever the scheme.

use std::{
    borrow::Cow,
    error, fmt,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName};

/// The maximum number of signatures of one request: a sender has two while it rotates its secret.
pub(super) const SIGNATURES_MAX: usize = 16;

/// Why the signature of a request is invalid. The message helps the sender to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureInvalid {
    pub(super) detail: Cow<'static, str>,
}

impl SignatureInvalid {
    pub(super) fn new(detail: impl Into<Cow<'static, str>>) -> Self {
        Self { detail: detail.into() }
    }

    /// A header that is present once and cannot be parsed.
    pub(super) fn malformed(name: &HeaderName, expected: &str) -> Self {
        Self::new(format!("the header {name} is malformed; send {expected}"))
    }
}

impl fmt::Display for SignatureInvalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl error::Error for SignatureInvalid {}

/// What a request presents: what is signed besides the body, and the signatures.
#[derive(Debug)]
pub(super) struct PresentedSignatures {
    /// The header of the signatures.
    pub(super) header: HeaderName,
    /// What is signed before the body.
    pub(super) before: String,
    /// What is signed after it.
    pub(super) after: String,
    /// Any of these may match; never empty.
    pub(super) signatures: Vec<Vec<u8>>,
    /// When it was signed, in seconds since 1970, if the scheme has a timestamp.
    pub(super) at: Option<u64>,
}

impl PresentedSignatures {
    /// Refuses a timestamp that is too far in the past or in the future.
    pub(super) fn check_time(
        &self,
        now: SystemTime,
        tolerance: Duration,
    ) -> Result<(), SignatureInvalid> {
        let Some(at) = self.at else { return Ok(()) };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let (off, tolerance) = (now.abs_diff(at), tolerance.as_secs());
        if off <= tolerance {
            return Ok(());
        }
        let detail = if at < now {
            format!(
                "the signature is {off} seconds old, and at most {tolerance} are accepted; sign \
                 the body again with the time of this attempt"
            )
        } else {
            format!(
                "the signature is from a time {off} seconds from now, and at most {tolerance} are \
                 accepted; set the clock of the sender"
            )
        };
        Err(SignatureInvalid::new(detail))
    }
}

/// The only line of a header.
pub(super) fn line<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<&'a str, SignatureInvalid> {
    let mut lines = headers.get_all(name).iter();
    let Some(line) = lines.next() else {
        return Err(SignatureInvalid::new(format!(
            "the header {name} is missing; this endpoint takes signed requests only"
        )));
    };
    if lines.next().is_some() {
        return Err(SignatureInvalid::new(format!(
            "the header {name} was sent more than once; send one line"
        )));
    }
    line.to_str().map_err(|_| SignatureInvalid::malformed(name, "visible ASCII only"))
}

/// Seconds since 1970 in decimal digits.
pub(super) fn timestamp(text: &str, name: &HeaderName) -> Result<u64, SignatureInvalid> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.then(|| text.parse().ok()).flatten();
    seconds.ok_or_else(|| {
        SignatureInvalid::malformed(name, "the time as whole seconds since 1970, digits only")
    })
}

/// The signatures that can be decoded, or an error if there is none.
pub(super) fn decode_signatures(
    signatures: impl Iterator<Item = Vec<u8>>,
    name: &HeaderName,
    expected: &str,
) -> Result<Vec<Vec<u8>>, SignatureInvalid> {
    let signatures: Vec<_> = signatures.take(SIGNATURES_MAX).collect();
    if signatures.is_empty() {
        return Err(SignatureInvalid::malformed(name, expected));
    }
    Ok(signatures)
}
