//! The fingerprint: a hash of what a request *means*.
//!
//! A repeat under the same key must be the same request. "The same" cannot be "the same bytes":
//! an honest retry may serialise its body again, and a multipart boundary is random every time.
//! Nor may it be anything looser than the meaning: two different amounts must never be equal.
//!
//! ```
//! use semel_core::fingerprint::{BodyKind, Fingerprint, FingerprintRule, FingerprintInput};
//!
//! let of = |body: &'static [u8]| {
//!     let kind = BodyKind::of(Some(b"application/json"), body.is_empty());
//!     let meaning = FingerprintInput { kind, body, ..FingerprintInput::new("POST", "/charges") };
//!     Fingerprint::of(&meaning, &FingerprintRule::default())
//! };
//! assert_eq!(of(br#"{"amount":100,"to":"x"}"#)?, of(br#"{ "to": "x", "amount": 1e2 }"#)?);
//! assert_ne!(of(br#"{"amount":100}"#)?, of(br#"{"amount":1000}"#)?);
//! assert!(of(br#"{"amount":1,"amount":2}"#).is_err());
//! # Ok::<(), semel_core::fingerprint::BodyError>(())
//! ```
//!
//! # What is hashed
//!
//! SHA-256 over a sequence of *texts*, each preceded by its length as 8 bytes, the most
//! significant first, so that no two different sequences are the same bytes. For a request, after
//! one byte 0:
//!
//! 1. the method as it was sent;
//! 2. the host, [in lower case, without port and trailing dot](host_name); or nothing if the
//!    request names none, names an IP address, or the rule ignores it;
//! 3. the path as it was sent;
//! 4. the query, preceded by `?`; or nothing if there is none or the rule ignores it;
//! 5. for each header that the rule lists, in the order of their names and each once: the name in
//!    lower case, then the value preceded by `=`, or nothing if the request has no such header. The
//!    value is the lines of the header without the white space around each, joined with `, `;
//! 6. the kind of the body: `empty`, `json`, `form`, `form-bytes`, `multipart` or `bytes`; or
//!    `ignored` if the rule ignores it;
//! 7. the canonical form of the body: [JSON](canonical), a [form], [multipart], or for the others
//!    the bytes themselves. A form with a broken percent escape has no canonical form; it is of the
//!    kind `form-bytes`. Nothing if the rule ignores it.
//!
//! For [anything else](Fingerprint::of_parts), after one byte 1: the domain, then each part. A
//! fingerprint is the version byte 2 and the 32 bytes of the hash. If this definition ever
//! changes the version does too, so that a change is never mistaken for another request. Version 1
//! had neither host nor headers.

mod header;
mod host;
mod kind;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use sha2::{Digest, Sha256};

use crate::canonical::{self, JsonError, JsonErrorKind, Selection};
use crate::form;
use crate::multipart::{self, MultipartError};

pub use header::{FingerprintHeader, FingerprintHeaderError};
pub use host::host_name;
pub use kind::BodyKind;

/// How many bytes a fingerprint has.
pub const FINGERPRINT_BYTES: usize = 33;

/// The version of the definition in the [module documentation](self).
const VERSION: u8 = 2;

/// Version byte and SHA-256 of what a request means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; FINGERPRINT_BYTES]);

/// What of a request makes it the request it is.
#[derive(Clone, Debug)]
pub struct FingerprintInput<'a> {
    /// The method, upper case as in HTTP.
    pub method: &'a str,
    /// The host that the request is for, as [`host_name`] spells it.
    pub host: Option<&'a str>,
    /// The path as it was sent. `/a` and `/%61` are different.
    pub path: &'a str,
    /// What follows the question mark, if there is one. The order of its pairs counts.
    pub query: Option<&'a str>,
    /// The lines of its headers in their order: at least those of the headers that the rule lists.
    /// Names are in lower case.
    pub headers: &'a [(&'a str, &'a [u8])],
    /// How the body is to be read.
    pub kind: BodyKind,
    /// The body, after any content coding was undone.
    pub body: &'a [u8],
}

impl<'a> FingerprintInput<'a> {
    /// A request without host, query, headers and body.
    #[must_use]
    pub const fn new(method: &'a str, path: &'a str) -> Self {
        let (kind, body) = (BodyKind::Empty, &[]);
        Self { method, host: None, path, query: None, headers: &[], kind, body }
    }
}

/// What of a request counts on a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FingerprintRule {
    /// Whether the host is compared.
    pub host: HostRule,
    /// The headers that count. Their order does not matter, nor whether one is listed twice.
    pub headers: Vec<FingerprintHeader>,
    /// Which part of a JSON body counts.
    pub selection: Selection,
    /// Whether the query counts.
    pub query: QueryRule,
    /// Whether the body counts at all.
    pub body: BodyRule,
}

/// Whether the body counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyRule {
    /// Whatever [`FingerprintRule::selection`] takes of it.
    #[default]
    Selected,
    /// Not at all: the key alone says which operation it is, as the id of a webhook does. A
    /// redelivery may then tell a newer state of the same event.
    Ignore,
}

/// Whether the host is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostRule {
    /// It is: one service may answer for several hosts.
    #[default]
    Compare,
    /// The host is not compared, for a service that does not receive the requested host.
    Ignore,
}

/// Whether the query counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueryRule {
    /// All of it, byte by byte.
    #[default]
    Whole,
    /// Not at all, for clients that put a timestamp or a nonce there.
    Ignore,
}

/// Why a body has no fingerprint. Each of these is the sender's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A body that was declared as JSON and is not, or is ambiguous.
    #[error(transparent)]
    Json(JsonError),
    /// A body that was declared as multipart and is not.
    #[error(transparent)]
    Multipart(#[from] MultipartError),
    /// None of the members that make up the operation is in the body.
    #[error("none of the members that make up this operation is in the body; send it as JSON")]
    NothingSelected,
}

/// Why bytes are not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintError {
    /// Not [`FINGERPRINT_BYTES`] of them.
    #[error("a fingerprint has 33 bytes, not {length}")]
    Length {
        /// How many there are.
        length: usize,
    },
    /// The version 0, which does not exist.
    #[error("a fingerprint of version 0 does not exist")]
    Version,
}

impl Fingerprint {
    /// The fingerprint of a request.
    ///
    /// A form with a broken percent escape is compared byte by byte, with other such forms only.
    ///
    /// # Errors
    ///
    /// If the body is not what its kind says it is, if the rule names members and the body has none
    /// of them (a body that is not JSON never has), or if it excepts the whole of a JSON body. A
    /// body that the rule ignores is not looked at.
    pub fn of(meaning: &FingerprintInput<'_>, rule: &FingerprintRule) -> Result<Self, BodyError> {
        let (kind, body) = match rule.body {
            BodyRule::Selected => canonical_body(&meaning.kind, meaning.body, &rule.selection)?,
            BodyRule::Ignore => ("ignored", Cow::default()),
        };
        let query = match rule.query {
            QueryRule::Whole => meaning.query,
            QueryRule::Ignore => None,
        };
        let host = match rule.host {
            HostRule::Compare => meaning.host.unwrap_or_default(),
            HostRule::Ignore => "",
        };
        let mut hash = Hash::new(0);
        hash.text(meaning.method.as_bytes());
        hash.text(host.as_bytes());
        hash.text(meaning.path.as_bytes());
        match query {
            Some(query) => hash.text(&[b"?", query.as_bytes()].concat()),
            None => hash.text(b""),
        }
        if !rule.headers.is_empty() {
            hash.headers(meaning.headers, &rule.headers);
        }
        hash.text(kind.as_bytes());
        hash.text(&body);
        Ok(hash.finish())
    }

    /// The fingerprint of an operation that is not an HTTP request.
    ///
    /// The domain says what the parts are, and keeps apart operations that happen to have equal
    /// parts. Where one part ends and the next begins counts.
    ///
    /// ```
    /// use semel_core::fingerprint::Fingerprint;
    ///
    /// let of = |parts: &[&[u8]]| Fingerprint::of_parts("email", parts);
    /// assert_eq!(of(&[b"welcome", b"zoe@example.org"]), of(&[b"welcome", b"zoe@example.org"]));
    /// assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
    /// ```
    #[must_use]
    pub fn of_parts(domain: &str, parts: &[&[u8]]) -> Self {
        let mut hash = Hash::new(1);
        hash.text(domain.as_bytes());
        for part in parts {
            hash.text(part);
        }
        hash.finish()
    }

    /// The fingerprint with this hash, which its sender computed as [`Fingerprint::of_parts`] does
    /// or in a way of its own.
    #[must_use]
    pub fn of_digest(digest: [u8; 32]) -> Self {
        let mut bytes = [VERSION; FINGERPRINT_BYTES];
        for (byte, of_hash) in bytes.iter_mut().skip(1).zip(digest) {
            *byte = of_hash;
        }
        Self(bytes)
    }

    /// The version byte and the hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; FINGERPRINT_BYTES] {
        &self.0
    }

    /// The fingerprint with these bytes, for a store that reads back what it kept.
    ///
    /// The bytes of a later version are kept as they are: they equal only themselves.
    ///
    /// # Errors
    ///
    /// If there are not [`FINGERPRINT_BYTES`] of them, or the version is 0.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FingerprintError> {
        let length = bytes.len();
        let bytes: [u8; FINGERPRINT_BYTES] =
            bytes.try_into().map_err(|_| FingerprintError::Length { length })?;
        match bytes {
            [0, ..] => Err(FingerprintError::Version),
            _ => Ok(Self(bytes)),
        }
    }

    /// Which definition the fingerprint follows.
    #[must_use]
    pub fn version(&self) -> u8 {
        let [version, ..] = self.0;
        version
    }
}

impl TryFrom<&[u8]> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(bytes: &[u8]) -> Result<Self, FingerprintError> {
        Self::from_bytes(bytes)
    }
}

impl fmt::Debug for Fingerprint {
    /// The version and the first bytes of the hash: enough to tell two apart in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(v{}:", self.version())?;
        for byte in self.0.iter().skip(1).take(6) {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("…)")
    }
}

impl From<JsonError> for BodyError {
    fn from(error: JsonError) -> Self {
        if error.kind() == JsonErrorKind::NothingSelected {
            Self::NothingSelected
        } else {
            Self::Json(error)
        }
    }
}

/// The name of the kind that the body turned out to be, and its canonical form.
fn canonical_body<'a>(
    kind: &BodyKind,
    body: &'a [u8],
    selection: &Selection,
) -> Result<(&'static str, Cow<'a, [u8]>), BodyError> {
    if matches!(selection, Selection::Only(_)) && *kind != BodyKind::Json {
        return Err(BodyError::NothingSelected);
    }
    Ok(match kind {
        BodyKind::Empty => ("empty", body.into()),
        BodyKind::Json => {
            let mut text = Vec::new();
            canonical::json(body, selection, &mut text)?;
            ("json", text.into())
        }
        BodyKind::Form => match form::pairs(body) {
            Some(pairs) => ("form", pairs.into()),
            None => ("form-bytes", body.into()),
        },
        BodyKind::Multipart { boundary } => {
            let boundary = boundary.as_deref().ok_or(MultipartError::NoBoundary)?;
            ("multipart", multipart::canonical(body, boundary)?.into())
        }
        BodyKind::Bytes => ("bytes", body.into()),
    })
}

/// SHA-256 over texts with their lengths.
struct Hash(Sha256);

impl Hash {
    fn new(domain: u8) -> Self {
        Self(Sha256::new_with_prefix([domain]))
    }

    fn text(&mut self, text: &[u8]) {
        self.0.update(multipart::length(text.len()));
        self.0.update(text);
    }

    fn headers(&mut self, lines: &[(&str, &[u8])], listed: &[FingerprintHeader]) {
        let names: BTreeSet<&str> = listed.iter().map(FingerprintHeader::as_str).collect();
        for wanted in names {
            let lines = lines.iter().filter(|(name, _)| *name == wanted);
            let values: Vec<&[u8]> = lines.map(|(_, value)| value.trim_ascii()).collect();
            self.text(wanted.as_bytes());
            match &values[..] {
                [] => self.text(b""),
                values => self.text(&[b"=", &values.join(&b", "[..])[..]].concat()),
            }
        }
    }

    fn finish(self) -> Fingerprint {
        let mut bytes = [VERSION; FINGERPRINT_BYTES];
        for (slot, byte) in bytes.iter_mut().skip(1).zip(self.0.finalize()) {
            *slot = byte;
        }
        Fingerprint(bytes)
    }
}
