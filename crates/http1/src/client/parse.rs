//! Parses a response head and determines where its body ends (RFC 9112, section 6.3).

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header, response,
};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use memchr::{memchr, memchr_iter};

use crate::Http1Error;
use crate::decode::{Decoder, has_bare_lf};

/// Maximum length of a head.
const HEAD_BYTES_MAX: usize = 400 * 1024;

/// Maximum number of header fields.
const HEAD_FIELDS_MAX: usize = 100;

/// Maximum number of interim responses before a response.
const INTERIM_MAX: u32 = 100;

/// The head of a response.
#[derive(Debug)]
pub struct ResponseHead {
    pub(crate) parts: response::Parts,
    pub(crate) body: Decoder,
    /// Whether the connection may be reused afterwards.
    pub(crate) keep_alive: bool,
    ends_with_connection: bool,
}

impl ResponseHead {
    /// Whether the body ends with the connection although the head does not announce it.
    pub const fn ends_with_connection(&self) -> bool {
        self.ends_with_connection
    }
}

/// Finds the head of a response in the input.
#[derive(Debug, Default)]
pub(crate) struct HeadParser {
    /// Length of the input that is known to hold no complete head.
    seen: usize,
    /// Number of interim responses so far.
    interim: u32,
}

impl HeadParser {
    /// Takes the head from the input, if it is complete. Interim responses are dropped: the gateway
    /// passes on final responses only.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<ResponseHead>, Http1Error> {
        while self.may_find(input)
            && let Some(head) = take_head(input, method)?
        {
            self.seen = 0;
            let status = head.parts.status;
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
            self.interim += 1;
            if self.interim > INTERIM_MAX {
                return Err(Http1Error::Malformed("too many interim responses"));
            }
        }
        self.seen = input.len();
        Ok(None)
    }

    /// Whether to parse again: a new line arrived, or the head is too long.
    fn may_find(&self, input: &[u8]) -> bool {
        let new = input.get(self.seen..).unwrap_or_default();
        memchr(b'\n', new).is_some() || input.len() > HEAD_BYTES_MAX
    }
}

/// Takes a head from the input. `None` if it is not complete.
pub(crate) fn take_head(
    input: &mut BytesMut,
    method: &Method,
) -> Result<Option<ResponseHead>, Http1Error> {
    let Some((mut parts, length)) = parse(input)? else {
        return if input.len() > HEAD_BYTES_MAX {
            Err(Http1Error::Malformed(TOO_LONG))
        } else {
            Ok(None)
        };
    };
    if length > HEAD_BYTES_MAX {
        return Err(Http1Error::Malformed(TOO_LONG));
    }
    if has_bare_lf(input.get(..length).unwrap_or_default()) {
        // Parsers disagree on whether LF alone ends a field; rewritten with CRLF it would be two
        // fields.
        return Err(Http1Error::Malformed("a line of the head ends with LF alone"));
    }
    if is_folded(input.get(..length).unwrap_or_default()) {
        unfold(input.get_mut(..length).unwrap_or_default());
        return take_head(input, method);
    }
    if hides_framing(input.get(..length).unwrap_or_default(), &parts.headers) {
        return Err(Http1Error::Malformed("a framing header is on an invalid line"));
    }
    input.advance(length);
    let (body, sure) = body_framing(&parts, method)?;
    if is_repeated(&parts.headers)
        && let Ok(Some(length)) = content_length(&parts.headers)
    {
        // The client gets the length once.
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let keep_alive = keeps_alive(&parts);
    // HTTP/1.0 and `Connection: close` announce that the body ends with the connection.
    let ends_with_connection = keep_alive && matches!(body, Decoder::UntilClose);
    let keep_alive = sure && keep_alive;
    Ok(Some(ResponseHead { parts, body, keep_alive, ends_with_connection }))
}

const TOO_LONG: &str = "the head is too long";

/// The head and its length. It holds a copy, so that the read buffer can be reused.
fn parse(input: &[u8]) -> Result<Option<(response::Parts, usize)>, Http1Error> {
    let mut fields = [const { MaybeUninit::uninit() }; HEAD_FIELDS_MAX];
    let mut head = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default()
        // The operation has run, so an invalid header line is no reason to fail, nor is whitespace
        // before a colon (RFC 9112, section 5.1).
        .ignore_invalid_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .parse_response_with_uninit_headers(&mut head, input, &mut fields);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Http1Error::Malformed("too many header fields"));
        }
        Err(_) => return Err(Http1Error::Malformed("invalid head")),
    };
    let status = head.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Http1Error::Malformed("invalid status"))?;
    let mut parts = Response::new(()).into_parts().0;
    parts.status = status;
    parts.version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let keep_alive = Bytes::copy_from_slice(input.get(..length).unwrap_or_default());
    let headers = header_map(head.headers, input, &keep_alive);
    parts.headers = headers.ok_or(Http1Error::Malformed("invalid header field"))?;
    if let Some(reason) = head.reason
        && status.canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        parts.extensions.insert(reason);
    }
    Ok(Some((parts, length)))
}

/// The header fields as slices of a copy of the input. `None` if one is invalid.
pub(crate) fn header_map(
    fields: &[httparse::Header<'_>],
    found_in: &[u8],
    copy: &Bytes,
) -> Option<HeaderMap> {
    // Reserve for fields that the gateway adds.
    let mut headers = HeaderMap::with_capacity(fields.len() + 8);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = slice_of(field.value, found_in, copy);
        headers.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(headers)
}

/// The slice of `copy` that corresponds to `part` of the input.
pub(crate) fn slice_of(part: &[u8], found_in: &[u8], copy: &Bytes) -> Bytes {
    let begin = part.as_ptr().addr() - found_in.as_ptr().addr();
    copy.slice(begin..begin + part.len())
}

/// Whether an invalid line that was skipped is a framing header.
fn hides_framing(head: &[u8], headers: &HeaderMap) -> bool {
    const FRAMING: [HeaderName; 3] =
        [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

    // Besides the fields there are the status line and an empty line.
    if memchr_iter(b'\n', head).count() == headers.len() + 2 {
        return false;
    }
    FRAMING.iter().any(|name| {
        let lines = head.split(|byte| *byte == b'\n').filter(|line| starts_with_name(line, name));
        lines.count() != headers.get_all(name).iter().count()
    })
}

/// Whether a line begins with this header name.
fn starts_with_name(line: &[u8], name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        && !line.get(name.len()).is_some_and(goes_on)
}

/// Whether a field is folded over several lines (obs-fold).
fn is_folded(head: &[u8]) -> bool {
    memchr_iter(b'\n', head).any(|at| matches!(head.get(at + 1), Some(b' ' | b'\t')))
}

/// Unfolds the fields, as a gateway must (RFC 9112, section 5.2).
fn unfold(head: &mut [u8]) {
    for at in 0..head.len() {
        if let Some([end @ b'\n', b' ' | b'\t']) = head.get_mut(at..at + 2) {
            *end = b' ';
            if let Some(before @ b'\r') = at.checked_sub(1).and_then(|at| head.get_mut(at)) {
                *before = b' ';
            }
        }
    }
}

/// Where the body ends, and whether that is unambiguous.
fn body_framing(parts: &response::Parts, method: &Method) -> Result<(Decoder, bool), Http1Error> {
    let (status, headers) = (parts.status, &parts.headers);
    let no_body = status.is_informational() || status == StatusCode::NOT_MODIFIED;
    if *method == Method::HEAD || no_body {
        // Their framing headers describe another response.
        return Ok((Decoder::Done, true));
    }
    let is_coded = headers.contains_key(header::TRANSFER_ENCODING);
    if status == StatusCode::NO_CONTENT {
        // An upstream that announces a body may send one, which would be read as the next response.
        let is_silent = !is_coded && matches!(content_length(headers), Ok(None | Some(0)));
        return Ok((Decoder::Done, is_silent));
    }
    if is_coded {
        let once = is_chunked_once(parts)?;
        // The coding overrides a length, and chunked counts once. But then the connection is not
        // reused.
        return Ok((Decoder::chunked(), once && !headers.contains_key(header::CONTENT_LENGTH)));
    }
    Ok(match content_length(headers)? {
        Some(0) => (Decoder::Done, true),
        Some(length) => (Decoder::Length(length), true),
        None => (Decoder::UntilClose, false),
    })
}

/// Whether `chunked` is named exactly once. Any other coding is an error, because it would not be
/// announced to the client.
fn is_chunked_once(parts: &response::Parts) -> Result<bool, Http1Error> {
    let lines = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    let all = codings.all(|coding| {
        count += 1;
        coding.trim_ascii().eq_ignore_ascii_case(b"chunked")
    });
    if !all || parts.version != Version::HTTP_11 {
        return Err(Http1Error::Malformed("unsupported transfer coding"));
    }
    Ok(count == 1)
}

/// Whether the length is given more than once.
fn is_repeated(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = lines.next();
    first.is_some_and(|line| lines.next().is_some() || memchr(b',', line.as_bytes()).is_some())
}

/// The `Content-Length`, if any. It may be repeated with the same value.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Http1Error> {
    let mut length_seen = None;
    for line in headers.get_all(header::CONTENT_LENGTH) {
        for text in line.as_bytes().split(|byte| *byte == b',') {
            let length = parse_digits(text.trim_ascii());
            let length =
                length.ok_or(Http1Error::Malformed("the Content-Length is not a number"))?;
            if length_seen.replace(length).is_some_and(|other| other != length) {
                return Err(Http1Error::Malformed("conflicting Content-Length values"));
            }
        }
    }
    Ok(length_seen)
}

/// Parses a number of digits only.
pub(crate) fn parse_digits(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Whether a comma-separated list contains this token.
pub(crate) fn has_token(line: &[u8], token: &[u8]) -> bool {
    line.split(|byte| *byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

/// Whether the upstream keeps the connection open.
fn keeps_alive(parts: &response::Parts) -> bool {
    let has_token = |token| {
        let mut lines = parts.headers.get_all(header::CONNECTION).iter();
        lines.any(|line| has_token(line.as_bytes(), token))
    };
    !has_token(b"close") && (parts.version == Version::HTTP_11 || has_token(b"keep-alive"))
}
