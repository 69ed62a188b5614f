//! Reads the head of an answer, and finds out where its body ends (RFC 9112, section 6.3).

use std::mem::MaybeUninit;

use bytes::{Buf as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version, header, response,
};
use httparse::{ParserConfig, Status};
use hyper::ext::ReasonPhrase;
use memchr::{memchr, memchr_iter};
use semel_tower::EndsWithConnection;

use super::{Fault, decode::Decoder};

/// How long a head may be.
const BYTES_MAX: usize = 400 * 1024;

/// How many fields it may have.
const FIELDS_MAX: usize = 100;

/// How many interim answers may come before an answer.
const INTERIM_MAX: u32 = 100;

/// The head of an answer.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) parts: response::Parts,
    pub(crate) body: Decoder,
    /// Whether the connection may be used again afterwards.
    pub(crate) kept: bool,
}

/// Looks for the head of an answer in what comes.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// How much of what has come is known to be no whole head.
    seen: usize,
    /// How many interim answers have come.
    interim: u32,
}

impl Search {
    /// Takes the head off what has come, if it is there. Interim answers are for nobody: who might
    /// have asked for one is not told that this request exists.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
        method: &Method,
    ) -> Result<Option<Head>, Fault> {
        while self.may_find(input)
            && let Some(head) = take(input, method)?
        {
            self.seen = 0;
            let status = head.parts.status;
            if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                return Ok(Some(head));
            }
            self.interim += 1;
            if self.interim > INTERIM_MAX {
                return Err(Fault::Malformed("it has too many interim answers"));
            }
        }
        self.seen = input.len();
        Ok(None)
    }

    /// Whether it is worth another look: a head ends with a line, and has to end somewhere.
    fn may_find(&self, input: &[u8]) -> bool {
        let new = input.get(self.seen..).unwrap_or_default();
        memchr(b'\n', new).is_some() || input.len() > BYTES_MAX
    }
}

/// Takes a head off what has come. `None` if it is not yet whole.
pub(crate) fn take(input: &mut BytesMut, method: &Method) -> Result<Option<Head>, Fault> {
    let Some((mut parts, length)) = parse(input)? else {
        return if input.len() > BYTES_MAX { Err(Fault::Malformed(TOO_LONG)) } else { Ok(None) };
    };
    if length > BYTES_MAX {
        return Err(Fault::Malformed(TOO_LONG));
    }
    if is_folded(input.get(..length).unwrap_or_default()) {
        unfold(input.get_mut(..length).unwrap_or_default());
        return take(input, method);
    }
    if hides_framing(input.get(..length).unwrap_or_default(), &parts.headers) {
        return Err(Fault::Malformed("it says in a line that cannot be read where its body ends"));
    }
    input.advance(length);
    let (body, sure) = body_of(&parts, method)?;
    if is_repeated(&parts.headers)
        && let Ok(Some(length)) = length_of(&parts.headers)
    {
        // Whoever comes next need not wonder why it is said twice.
        parts.headers.insert(header::CONTENT_LENGTH, length.into());
    }
    let kept = is_kept(&parts);
    if kept && matches!(body, Decoder::UntilClose) {
        // HTTP/1.0 and `Connection: close` announce the end that such a body has.
        parts.extensions.insert(EndsWithConnection);
    }
    let kept = sure && kept;
    Ok(Some(Head { parts, body, kept }))
}

const TOO_LONG: &str = "its head is too long";

/// The head and how long it is. What it keeps of the input is a copy: the space for that is free
/// for what comes next.
fn parse(input: &[u8]) -> Result<Option<(response::Parts, usize)>, Fault> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut head = httparse::Response::new(&mut []);
    let parsed = ParserConfig::default()
        // The operation has run: a line of its answer that cannot be read is no reason to doubt it,
        // and blanks before a colon are none not to read it (RFC 9112, section 5.1).
        .ignore_invalid_headers_in_responses(true)
        .allow_spaces_after_header_name_in_responses(true)
        .parse_response_with_uninit_headers(&mut head, input, &mut fields);
    let length = match parsed {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Fault::Malformed("it has too many fields"));
        }
        Err(_) => return Err(Fault::Malformed("its head cannot be read")),
    };
    let status = head.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(Fault::Malformed("its status is none"))?;
    let mut parts = Response::new(()).into_parts().0;
    parts.status = status;
    parts.version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let kept = Bytes::copy_from_slice(input.get(..length).unwrap_or_default());
    let headers = fields_of(head.headers, input, &kept);
    parts.headers = headers.ok_or(Fault::Malformed("a field cannot be read"))?;
    if let Some(reason) = head.reason
        && status.canonical_reason() != Some(reason)
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        parts.extensions.insert(reason);
    }
    Ok(Some((parts, length)))
}

/// The fields, as parts of a copy of what they were found in. `None` if one cannot be read.
pub(super) fn fields_of(
    fields: &[httparse::Header<'_>],
    found_in: &[u8],
    copy: &Bytes,
) -> Option<HeaderMap> {
    // Some are to be added on the way.
    let mut headers = HeaderMap::with_capacity(fields.len() + 8);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let value = part_of(field.value, found_in, copy);
        headers.append(name, HeaderValue::from_maybe_shared(value).ok()?);
    }
    Some(headers)
}

/// A part of a copy: where `part` is in what was copied.
pub(super) fn part_of(part: &[u8], found_in: &[u8], copy: &Bytes) -> Bytes {
    let begin = part.as_ptr().addr() - found_in.as_ptr().addr();
    copy.slice(begin..begin + part.len())
}

/// Whether a line was passed over that says where the body ends, or the connection.
fn hides_framing(head: &[u8], headers: &HeaderMap) -> bool {
    const FRAMING: [HeaderName; 3] =
        [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

    // Beside the fields there are the first line and an empty one.
    if memchr_iter(b'\n', head).count() == headers.len() + 2 {
        return false;
    }
    FRAMING.iter().any(|name| {
        let lines = head.split(|byte| *byte == b'\n').filter(|line| names(line, name));
        lines.count() != headers.get_all(name).iter().count()
    })
}

/// Whether a line begins with this name.
fn names(line: &[u8], name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        && !line.get(name.len()).is_some_and(goes_on)
}

/// Whether a field goes on in another line, as was once allowed.
fn is_folded(head: &[u8]) -> bool {
    memchr_iter(b'\n', head).any(|at| matches!(head.get(at + 1), Some(b' ' | b'\t')))
}

/// Puts fields on one line each, as a gateway must (RFC 9112, section 5.2).
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

/// Where the body ends; and whether there is only one opinion of it.
fn body_of(parts: &response::Parts, method: &Method) -> Result<(Decoder, bool), Fault> {
    let (status, headers) = (parts.status, &parts.headers);
    let no_body = status.is_informational() || status == StatusCode::NOT_MODIFIED;
    if *method == Method::HEAD || no_body {
        // They may say what another answer would have.
        return Ok((Decoder::Done, true));
    }
    let is_coded = headers.contains_key(header::TRANSFER_ENCODING);
    if status == StatusCode::NO_CONTENT {
        // What announces a body may send one, and that would answer the next request.
        let is_silent = !is_coded && matches!(length_of(headers), Ok(None | Some(0)));
        return Ok((Decoder::Done, is_silent));
    }
    if is_coded {
        let once = is_chunked_once(parts)?;
        // A length beside it does not count, and one coding is not done twice; but then who knows
        // what comes next on this connection.
        return Ok((Decoder::chunked(), once && !headers.contains_key(header::CONTENT_LENGTH)));
    }
    Ok(match length_of(headers)? {
        Some(0) => (Decoder::Done, true),
        Some(length) => (Decoder::Length(length), true),
        None => (Decoder::UntilClose, false),
    })
}

/// Whether an answer says only once that it comes in chunks. It may say nothing else: whoever gets
/// it is not told of any other coding.
fn is_chunked_once(parts: &response::Parts) -> Result<bool, Fault> {
    let lines = parts.headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    let all = codings.all(|coding| {
        count += 1;
        coding.trim_ascii().eq_ignore_ascii_case(b"chunked")
    });
    if !all || parts.version != Version::HTTP_11 {
        return Err(Fault::Malformed("its transfer coding was not asked for"));
    }
    Ok(count == 1)
}

/// Whether a length is said more than once.
fn is_repeated(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = lines.next();
    first.is_some_and(|line| lines.next().is_some() || memchr(b',', line.as_bytes()).is_some())
}

/// The length that is said, if any. It may be said more than once, if it is the same.
fn length_of(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let mut said = None;
    for line in headers.get_all(header::CONTENT_LENGTH) {
        for text in line.as_bytes().split(|byte| *byte == b',') {
            let length = digits(text.trim_ascii());
            let length = length.ok_or(Fault::Malformed("its length is no number"))?;
            if said.replace(length).is_some_and(|other| other != length) {
                return Err(Fault::Malformed("it has two lengths"));
            }
        }
    }
    Ok(said)
}

/// A number that is written in digits and nothing else.
pub(super) fn digits(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Whether a list has this word.
pub(super) fn says(line: &[u8], word: &[u8]) -> bool {
    line.split(|byte| *byte == b',').any(|said| said.trim_ascii().eq_ignore_ascii_case(word))
}

/// Whether the upstream keeps the connection.
fn is_kept(parts: &response::Parts) -> bool {
    let says = |word| {
        let mut lines = parts.headers.get_all(header::CONNECTION).iter();
        lines.any(|line| says(line.as_bytes(), word))
    };
    !says(b"close") && (parts.version == Version::HTTP_11 || says(b"keep-alive"))
}
