//! Reads the head of a request, and finds out where its body ends (RFC 9112, section 6.3).
//!
//! Where two programs in a row disagree about where a request ends, a client can hide one request
//! in the body of another. So a request of whose end there could be two opinions is refused: one
//! with both `Content-Length` and `Transfer-Encoding`, with lengths that differ, with any coding
//! but `chunked`, or with one in HTTP/1.0. What passes is written anew for the upstream, with one
//! length or in chunks of our own.

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version, header, request,
};
use httparse::{ParserConfig, Status};

use super::{
    decode::{Decoder, has_bare_lf},
    head::{digits, fields_of, part_of, says},
};
use crate::gateway::check::Wrong;

/// As many fields as there is space for without an allocation.
const FIELDS: usize = 100;

/// More than this no target may have: it is what `http` can hold.
const TARGET_MAX: usize = 65_534;

/// How large a head may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) bytes: usize,
    pub(crate) fields: usize,
}

/// The head of a request.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) parts: request::Parts,
    pub(crate) body: Decoder,
    /// Whether the client wants to keep the connection.
    pub(crate) keeps: bool,
    /// Whether it waits for a word before it sends the body.
    pub(crate) expects: bool,
    /// Whether it wants to go on in another protocol.
    pub(crate) upgrades: bool,
    /// Whether it takes trailers.
    pub(crate) trailers: bool,
}

/// Takes a head off what has come. `None` if it is not yet whole.
pub(crate) fn take(input: &mut BytesMut, bounds: Bounds) -> Result<Option<Asked>, Wrong> {
    let parsed = if bounds.fields <= FIELDS {
        let mut space = [const { MaybeUninit::uninit() }; FIELDS];
        parse(input, space.get_mut(..bounds.fields).unwrap_or_default())
    } else {
        parse(input, &mut vec![MaybeUninit::uninit(); bounds.fields])
    };
    let (asked, length) = match parsed? {
        Some((asked, length)) if length <= bounds.bytes => (asked, length),
        None if input.len() < bounds.bytes => return Ok(None),
        Some(_) | None => return Err(TOO_LARGE),
    };
    input.advance(length);
    Ok(Some(asked))
}

const TOO_LARGE: Wrong = (
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "the head of the request is larger than this gateway takes",
);

const TOO_MANY: Wrong = (
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    "the request has more header fields than this gateway takes",
);

const fn wrong(detail: &'static str) -> Wrong {
    (StatusCode::BAD_REQUEST, detail)
}

/// The head and how long it is.
fn parse<'b>(
    input: &'b [u8],
    space: &mut [MaybeUninit<httparse::Header<'b>>],
) -> Result<Option<(Asked, usize)>, Wrong> {
    let mut head = httparse::Request::new(&mut []);
    let parsed = ParserConfig::default().parse_request_with_uninit_headers(&mut head, input, space);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(error) => return Err(refusal(error)),
    };
    let head_bytes = input.get(..length).unwrap_or_default();
    if has_bare_lf(head_bytes) {
        return Err(wrong("a line of its head ends with LF alone; it has to be CR and LF"));
    }
    // What is kept of the input is a copy: the space for that is free for what comes next.
    let copy = Bytes::copy_from_slice(head_bytes);
    let method = head.method.map(str::as_bytes).map(Method::from_bytes);
    let Some(Ok(method)) = method else { return Err(wrong("its method is none")) };
    let target = head.path.unwrap_or_default();
    if target.len() > TARGET_MAX {
        return Err((StatusCode::URI_TOO_LONG, "the target is longer than any should be"));
    }
    let target = Uri::from_maybe_shared(part_of(target.as_bytes(), input, &copy));
    let target = target.map_err(|_| wrong("the target cannot be read"))?;
    let version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let headers = fields_of(head.headers, input, &copy);
    let mut headers = headers.ok_or_else(|| wrong("a header field cannot be read"))?;
    let said = Said::by(&headers)?;
    let body = said.body(version)?;
    if let Some(length) = said.length
        && said.oddly
    {
        // Whoever comes next need not wonder why it is said like this.
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let mut parts = Request::new(()).into_parts().0;
    (parts.method, parts.uri, parts.version, parts.headers) = (method, target, version, headers);
    let keeps = !said.close && (version == Version::HTTP_11 || said.keep_alive);
    let expects = said.expects && version == Version::HTTP_11 && !body.is_done();
    let Said { upgrades, trailers, .. } = said;
    Ok(Some((Asked { parts, body, keeps, expects, upgrades, trailers }, length)))
}

fn refusal(error: httparse::Error) -> Wrong {
    match error {
        httparse::Error::TooManyHeaders => TOO_MANY,
        httparse::Error::HeaderName => wrong("the name of a header field cannot be read"),
        httparse::Error::HeaderValue => wrong("the value of a header field cannot be read"),
        httparse::Error::Version => wrong("this gateway speaks HTTP/1.1 here, and HTTP/1.0"),
        httparse::Error::NewLine | httparse::Error::Status | httparse::Error::Token => {
            wrong("this is not the beginning of an HTTP request")
        }
    }
}

/// What the fields say about the connection and the end of the body.
#[derive(Debug, Default)]
struct Said {
    length: Option<u64>,
    /// Whether the length is said twice, or not as everybody says it.
    oddly: bool,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expects: bool,
    upgrades: bool,
    trailers: bool,
}

impl Said {
    fn by(headers: &HeaderMap) -> Result<Self, Wrong> {
        let mut said = Self::default();
        // One look at each is cheaper than a search for each that is hardly ever there.
        for (name, value) in headers {
            said.hear(name, value).map_err(wrong)?;
        }
        Ok(said)
    }

    fn hear(&mut self, name: &HeaderName, value: &HeaderValue) -> Result<(), &'static str> {
        let value = value.as_bytes();
        if *name == header::CONTENT_LENGTH {
            let length = digits(value).ok_or("the length of the body is no number")?;
            self.oddly |= self.length.is_some() || (value.len() > 1 && value.starts_with(b"0"));
            if self.length.replace(length).is_some_and(|other| other != length) {
                return Err("the request has two lengths");
            }
        } else if *name == header::TRANSFER_ENCODING {
            if self.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err("the only transfer coding of a request can be chunked, once");
            }
            self.chunked = true;
        } else if *name == header::CONNECTION {
            self.close |= says(value, b"close");
            self.keep_alive |= says(value, b"keep-alive");
        } else if *name == header::EXPECT {
            self.expects |= value.eq_ignore_ascii_case(b"100-continue");
        } else if *name == header::UPGRADE {
            self.upgrades = true;
        } else if *name == header::TE {
            self.trailers |= says(value, b"trailers");
        }
        Ok(())
    }

    fn body(&self, version: Version) -> Result<Decoder, Wrong> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(wrong("the request has both a length and a transfer coding")),
            (true, None) if version == Version::HTTP_10 => {
                Err(wrong("HTTP/1.0 has no transfer codings"))
            }
            (true, None) => Ok(Decoder::chunked()),
            (false, None | Some(0)) => Ok(Decoder::Done),
            (false, Some(length)) => Ok(Decoder::Length(length)),
        }
    }
}

#[cfg(test)]
mod tests;
