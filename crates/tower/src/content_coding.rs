//! Decodes the content coding of a request body, within limits: on the length of the result, on its
//! ratio to the coded length, and on the number of gzip members.

#[cfg(feature = "compression")]
mod decoder;

use http::{HeaderMap, header};
use semel::core::Problem;

use crate::refusal::RequestRefusal;

/// The content coding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Identity,
    #[cfg(feature = "compression")]
    Gzip,
    #[cfg(feature = "compression")]
    Deflate,
    /// A coding that cannot be decoded here, or several.
    Other,
}

impl ContentCoding {
    /// The coding that the headers declare.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
        match (codings.next(), codings.next()) {
            (None, _) => Self::Identity,
            (Some(coding), None) => Self::named(coding.as_bytes().trim_ascii()),
            (Some(_), Some(_)) => Self::Other,
        }
    }

    fn named(name: &[u8]) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("identity") || name.is_empty() {
            return Self::Identity;
        }
        #[cfg(feature = "compression")]
        if is("gzip") || is("x-gzip") {
            return Self::Gzip;
        } else if is("deflate") {
            return Self::Deflate;
        }
        Self::Other
    }

    /// Maximum decoded length of a body of `coded` bytes.
    pub(crate) const fn decoded_bytes_max(self, coded: usize) -> usize {
        match self {
            Self::Identity | Self::Other => coded,
            #[cfg(feature = "compression")]
            Self::Gzip | Self::Deflate => decoder::bytes_max_by_ratio(coded),
        }
    }

    /// Decodes a body, up to `max` bytes. `None` if it is not coded.
    #[cfg_attr(
        not(feature = "compression"),
        expect(unused_variables, reason = "nothing is decoded, so nothing has a limit")
    )]
    pub(crate) fn decode(self, body: &[u8], max: usize) -> Result<Option<Vec<u8>>, RequestRefusal> {
        match self {
            _ if body.is_empty() => Ok(None),
            Self::Identity | Self::Other => Ok(None),
            #[cfg(feature = "compression")]
            Self::Gzip => decoder::gunzip(body, max).map(Some),
            #[cfg(feature = "compression")]
            Self::Deflate => decoder::inflate(body, max).map(Some),
        }
    }

    /// Whether a body with this coding is decoded.
    pub(crate) fn is_decoded(self) -> bool {
        !matches!(self, Self::Identity | Self::Other)
    }
}

/// The refusal of a body of more than `max` bytes.
pub(crate) fn too_large(max: usize) -> RequestRefusal {
    let detail = format!("this route guards bodies of up to {max} bytes; nothing was done");
    RequestRefusal::detailed(Problem::BodyTooLarge, detail)
}
