//! Parses a request head and determines where its body ends (RFC 9112, section 6.3).
//!
//! If two servers in a chain disagree about where a request ends, a client can hide one request in
//! the body of another (request smuggling). So a request with ambiguous framing is refused: with
//! both `Content-Length` and `Transfer-Encoding`, with different lengths, with any coding but
//! `chunked`, or with a coding in HTTP/1.0. The gateway encodes the framing of an accepted request
//! itself, with one length or in its own chunks.

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header, request,
};
use httparse::{ParserConfig, Status};

use crate::BadRequest;
use crate::client::parse::{has_token, header_map, parse_digits, slice_of};
use crate::decode::{Decoder, has_bare_lf};

/// Number of header fields that are parsed without an allocation.
const FIELDS: usize = 100;

/// Maximum length of a target: the limit of the `http` crate.
const TARGET_MAX: usize = 65_534;

/// Limits of a request head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadLimits {
    pub bytes: usize,
    pub fields: usize,
}

/// The head of a request.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub parts: request::Parts,
    pub body: Decoder,
    /// Whether the client wants to keep the connection alive.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// Whether the request has an `Upgrade` field.
    pub wants_upgrade: bool,
    /// Whether the client accepts trailers.
    pub trailers: bool,
}

/// Takes a head from the input. `None` if it is not complete.
pub(crate) fn take_head(
    input: &mut BytesMut,
    limits: HeadLimits,
) -> Result<Option<RequestHead>, BadRequest> {
    let parsed = if limits.fields <= FIELDS {
        let mut space = [const { MaybeUninit::uninit() }; FIELDS];
        parse(input, space.get_mut(..limits.fields).unwrap_or_default())
    } else {
        parse(input, &mut vec![MaybeUninit::uninit(); limits.fields])
    };
    let (head, length) = match parsed? {
        Some((head, length)) if length <= limits.bytes => (head, length),
        None if input.len() < limits.bytes => return Ok(None),
        Some(_) | None => return Err(TOO_LARGE),
    };
    input.advance(length);
    Ok(Some(head))
}

const TOO_LARGE: BadRequest =
    (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "The request head is too large.");

const TOO_MANY: BadRequest =
    (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "The request has too many header fields.");

const fn bad_request(detail: &'static str) -> BadRequest {
    (StatusCode::BAD_REQUEST, detail)
}

/// The head and its length.
fn parse<'b>(
    input: &'b [u8],
    space: &mut [MaybeUninit<httparse::Header<'b>>],
) -> Result<Option<(RequestHead, usize)>, BadRequest> {
    let mut head = httparse::Request::new(&mut []);
    let parsed = ParserConfig::default().parse_request_with_uninit_headers(&mut head, input, space);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(parse_error(error)),
    };
    let head_bytes = input.get(..length).unwrap_or_default();
    if has_bare_lf(head_bytes) {
        return Err(bad_request("A line of the request head ends with LF alone; use CRLF."));
    }
    // The head holds a copy, so that the read buffer can be reused.
    let copy = Bytes::copy_from_slice(head_bytes);
    let method = head.method.map(str::as_bytes).map(Method::from_bytes);
    let Some(Ok(method)) = method else {
        return Err(bad_request("The request method is invalid."));
    };
    let target = head.path.unwrap_or_default();
    if target.len() > TARGET_MAX {
        return Err((StatusCode::URI_TOO_LONG, "The request target is too long."));
    }
    let target = Uri::from_maybe_shared(slice_of(target.as_bytes(), input, &copy));
    let target = target.map_err(|_| bad_request("The request target is invalid."))?;
    let version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let headers = header_map(head.headers, input, &copy);
    let mut headers = headers.ok_or_else(|| bad_request("A header field is invalid."))?;
    let framing = FramingHeaders::read(&headers)?;
    let body = framing.body(version)?;
    if let Some(length) = framing.length
        && framing.needs_rewrite
    {
        // The upstream gets one length in its canonical form.
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let mut parts = Request::new(()).into_parts().0;
    (parts.method, parts.uri, parts.version, parts.headers) = (method, target, version, headers);
    let keep_alive = !framing.close && (version == Version::HTTP_11 || framing.keep_alive);
    let expect_continue = framing.expect_continue && version == Version::HTTP_11 && !body.is_done();
    let FramingHeaders { wants_upgrade, trailers, .. } = framing;
    Ok(Some((
        RequestHead { parts, body, keep_alive, expect_continue, wants_upgrade, trailers },
        length,
    )))
}

fn parse_error(error: httparse::Error) -> BadRequest {
    match error {
        httparse::Error::TooManyHeaders => TOO_MANY,
        httparse::Error::HeaderName => bad_request("A header name is invalid."),
        httparse::Error::HeaderValue => bad_request("A header value is invalid."),
        httparse::Error::Version => {
            bad_request("Unsupported HTTP version; use HTTP/1.0 or HTTP/1.1.")
        }
        httparse::Error::NewLine | httparse::Error::Status | httparse::Error::Token => {
            bad_request("The request line is invalid.")
        }
    }
}

/// The header fields that concern the connection and the framing of the body.
#[derive(Debug, Default)]
struct FramingHeaders {
    length: Option<u64>,
    /// Whether the length is repeated or not in its canonical form.
    needs_rewrite: bool,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
    wants_upgrade: bool,
    trailers: bool,
}

impl FramingHeaders {
    fn read(headers: &HeaderMap) -> Result<Self, BadRequest> {
        let mut framing = Self::default();
        // One pass is cheaper than a lookup for each field, as most are rare.
        for (name, value) in headers {
            framing.observe(name, value).map_err(bad_request)?;
        }
        Ok(framing)
    }

    fn observe(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), &'static str> {
        let value = value.as_bytes();
        if *name == header::CONTENT_LENGTH {
            let length = parse_digits(value).ok_or("The Content-Length is not a number.")?;
            self.needs_rewrite |=
                self.length.is_some() || (value.len() > 1 && value.starts_with(b"0"));
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err("The request has conflicting Content-Length values.");
            }
        } else if *name == header::TRANSFER_ENCODING {
            if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err("The only supported transfer coding is chunked, given once.");
            }
            self.chunked = true;
        } else if *name == header::CONNECTION {
            self.close |= has_token(value, b"close");
            self.keep_alive |= has_token(value, b"keep-alive");
        } else if *name == header::EXPECT {
            self.expect_continue |= value.eq_ignore_ascii_case(b"100-continue");
        } else if *name == header::UPGRADE {
            self.wants_upgrade = true;
        } else if *name == header::TE {
            self.trailers |= has_token(value, b"trailers");
        }
        Ok(())
    }

    fn body(&self, version: Version) -> Result<Decoder, BadRequest> {
        match (self.chunked, self.length) {
            (true, Some(_)) => {
                Err(bad_request("The request has both Content-Length and Transfer-Encoding."))
            }
            (true, None) if version == Version::HTTP_10 => {
                Err(bad_request("HTTP/1.0 does not support Transfer-Encoding."))
            }
            (true, None) => Ok(Decoder::chunked()),
            (false, None | Some(0)) => Ok(Decoder::Done),
            (false, Some(length)) => Ok(Decoder::Length(length)),
        }
    }
}

#[cfg(test)]
mod tests;
