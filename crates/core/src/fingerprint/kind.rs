//! How a body is to be read.

use crate::multipart::params::ParameterizedValue;

/// How a body is to be read, as its `Content-Type` declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// There is none.
    Empty,
    /// `application/json`, or any type that ends in `+json`.
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `multipart/form-data`, or any other `multipart` type.
    Multipart {
        /// The boundary. `None` if the parameter is missing, given twice or malformed, in which
        /// case the body has no fingerprint.
        boundary: Option<Vec<u8>>,
    },
    /// Anything else.
    Bytes,
}

impl BodyKind {
    /// The kind of a body with this `Content-Type`.
    ///
    /// Case does not matter, nor does any parameter but the boundary. An empty body is empty
    /// whatever it was declared to be.
    ///
    /// ```
    /// use semel_core::fingerprint::BodyKind;
    ///
    /// let of = |content_type: &str| BodyKind::of(Some(content_type.as_bytes()), false);
    /// assert_eq!(of("Application/JSON; charset=utf-8"), BodyKind::Json);
    /// assert_eq!(of("application/vnd.api+json"), BodyKind::Json);
    /// let boundary = Some(b"a b".to_vec());
    /// assert_eq!(of("multipart/form-data; boundary=\"a b\""), BodyKind::Multipart { boundary });
    /// assert_eq!(of("text/plain"), BodyKind::Bytes);
    /// assert_eq!(BodyKind::of(None, true), BodyKind::Empty);
    /// ```
    #[must_use]
    pub fn of(content_type: Option<&[u8]>, body_is_empty: bool) -> Self {
        if body_is_empty {
            return Self::Empty;
        }
        let Some(value) = content_type else { return Self::Bytes };
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
        let essence = essence.trim_ascii().to_ascii_lowercase();
        match essence.as_slice() {
            b"application/json" => Self::Json,
            b"application/x-www-form-urlencoded" => Self::Form,
            essence if essence.ends_with(b"+json") && is_media_type(essence) => Self::Json,
            essence if essence.starts_with(b"multipart/") && is_media_type(essence) => {
                let boundary =
                    ParameterizedValue::parse(value).and_then(|value| value.only(b"boundary"));
                Self::Multipart { boundary: boundary.map(<[u8]>::to_vec) }
            }
            _ => Self::Bytes,
        }
    }
}

/// Whether this is `type/subtype`, and not, say, two of them in a list.
fn is_media_type(essence: &[u8]) -> bool {
    let mut halves = essence.splitn(2, |byte| *byte == b'/');
    let mut is_token = || halves.next().is_some_and(crate::multipart::params::is_token);
    is_token() && is_token()
}
