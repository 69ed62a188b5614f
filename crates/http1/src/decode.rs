//! Decodes the body of a message.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use httparse::Status;
use memchr::{memchr, memchr_iter};

use crate::Http1Error;

/// Maximum length of a chunk size line.
const CHUNK_LINE_MAX: usize = 4 * 1024;

/// Maximum total length of the chunk extensions of a body, above the free allowance of each line:
/// [`EXTENSION_BYTES_FREE`], and twice the size of its chunk.
const EXTENSION_BYTES_MAX: u64 = 16 * 1024;
const EXTENSION_BYTES_FREE: u64 = 16;

/// Maximum length of the trailers.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of trailer fields.
const TRAILER_FIELDS_MAX: usize = 100;

/// Up to this size a copy is cheaper than sharing the read buffer, and keeps less memory alive.
const COPY_MAX: usize = 2 * 1024;

/// State of decoding a body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Decoder {
    /// Remaining bytes.
    Length(u64),
    Chunked {
        state: ChunkState,
        /// Length of the chunk extensions above the free allowance.
        extensions: u64,
    },
    /// Everything until the connection is closed.
    UntilClose,
    Done,
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ChunkState {
    /// Before a chunk size line.
    Size,
    /// In a chunk with this many bytes left.
    Data(u64),
    /// Before the line end after a chunk.
    End,
    /// After the last chunk.
    Trailers,
}

impl Decoder {
    pub(crate) const fn chunked() -> Self {
        Self::Chunked { state: ChunkState::Size, extensions: 0 }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Number of remaining bytes, if known.
    pub(crate) const fn remaining(&self) -> Option<u64> {
        match self {
            Self::Length(remaining) => Some(*remaining),
            Self::Done => Some(0),
            Self::Chunked { .. } | Self::UntilClose => None,
        }
    }

    /// Handles the end of the connection: an error if the body is not complete.
    pub(crate) fn end(&mut self) -> Result<(), Http1Error> {
        match self {
            Self::UntilClose | Self::Done => {
                *self = Self::Done;
                Ok(())
            }
            Self::Length(_) | Self::Chunked { .. } => Err(Http1Error::Closed),
        }
    }

    /// Decodes the next frame. `None` if more input is needed, or at the end.
    pub(crate) fn next(
        &mut self,
        input: &mut BytesMut,
    ) -> Result<Option<Frame<Bytes>>, Http1Error> {
        match self {
            Self::Done => Ok(None),
            Self::UntilClose if input.is_empty() => Ok(None),
            Self::UntilClose => Ok(Some(Frame::data(take_bytes(input, u64::MAX)))),
            Self::Length(remaining) => {
                let data = take_bytes(input, *remaining);
                *remaining -= length(&data);
                if *remaining == 0 {
                    *self = Self::Done;
                }
                Ok((!data.is_empty()).then(|| Frame::data(data)))
            }
            Self::Chunked { state, extensions } => {
                let (next, frame) = state.next(input, extensions)?;
                match next {
                    Some(next) => *state = next,
                    None => *self = Self::Done,
                }
                Ok(frame)
            }
        }
    }
}

impl ChunkState {
    /// The next state, `None` at the end, and a frame if one is complete.
    fn next(
        self,
        input: &mut BytesMut,
        extensions: &mut u64,
    ) -> Result<(Option<Self>, Option<Frame<Bytes>>), Http1Error> {
        let mut state = self;
        loop {
            state = match state {
                Self::Size => match chunk_size(input, extensions)? {
                    None => return Ok((Some(state), None)),
                    Some(0) => Self::Trailers,
                    Some(size) => Self::Data(size),
                },
                Self::Data(_) if input.is_empty() => return Ok((Some(state), None)),
                Self::Data(remaining) => {
                    let data = take_bytes(input, remaining);
                    let remaining = remaining - length(&data);
                    let next = if remaining == 0 { Self::End } else { Self::Data(remaining) };
                    return Ok((Some(next), Some(Frame::data(data))));
                }
                Self::End => match input.get(..2) {
                    None => return Ok((Some(state), None)),
                    Some(b"\r\n") => {
                        input.advance(2);
                        Self::Size
                    }
                    Some(_) => {
                        return Err(Http1Error::Malformed("a chunk does not end with CRLF"));
                    }
                },
                Self::Trailers => {
                    return Ok(match trailers(input)? {
                        None => (Some(state), None),
                        Some(trailers) if trailers.is_empty() => (None, None),
                        Some(trailers) => (None, Some(Frame::trailers(trailers))),
                    });
                }
            };
        }
    }
}

/// Parses a chunk size line and discards its extensions.
fn chunk_size(input: &mut BytesMut, extensions: &mut u64) -> Result<Option<u64>, Http1Error> {
    const INVALID: Http1Error = Http1Error::Malformed("invalid chunk size");

    let Some(end) = memchr(b'\n', input) else {
        return if input.len() > CHUNK_LINE_MAX { Err(INVALID) } else { Ok(None) };
    };
    let line = input.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(INVALID)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let is_extension = matches!(rest.get(blanks..), Some([] | [b';', ..]));
    // Another parser may take a bare CR for the end of a line.
    let is_extension = is_extension && memchr(b'\r', line).is_none();
    if line.len() > CHUNK_LINE_MAX || !(1..=16).contains(&digits.len()) || !is_extension {
        return Err(INVALID);
    }
    let digits = str::from_utf8(digits).map_err(|_| INVALID)?;
    let size = u64::from_str_radix(digits, 16).map_err(|_| INVALID)?;
    let allowed = size.saturating_mul(2).saturating_add(EXTENSION_BYTES_FREE);
    let extension_bytes = u64::try_from(rest.len()).unwrap_or(u64::MAX);
    *extensions = extensions.saturating_add(extension_bytes).saturating_sub(allowed);
    if *extensions > EXTENSION_BYTES_MAX {
        return Err(Http1Error::Malformed("too many chunk extensions"));
    }
    input.advance(end + 1);
    Ok(Some(size))
}

/// Parses the trailers. `None` if they are not complete.
fn trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, Http1Error> {
    const INVALID: Http1Error = Http1Error::Malformed("invalid trailers");

    if input.starts_with(b"\r\n") {
        input.advance(2);
        return Ok(Some(HeaderMap::new()));
    }
    let mut fields = [httparse::EMPTY_HEADER; TRAILER_FIELDS_MAX];
    let (end, fields) = match httparse::parse_headers(input, &mut fields) {
        Ok(Status::Complete(parsed)) => parsed,
        Ok(Status::Partial) if input.len() <= TRAILER_BYTES_MAX => return Ok(None),
        Ok(Status::Partial) | Err(_) => return Err(INVALID),
    };
    if end > TRAILER_BYTES_MAX || has_bare_lf(input.get(..end).unwrap_or_default()) {
        return Err(INVALID);
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| INVALID)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| INVALID)?;
        trailers.append(name, value);
    }
    input.advance(end);
    Ok(Some(trailers))
}

/// Whether a line ends with LF alone. Another parser may not take that for the end of the line.
pub(crate) fn has_bare_lf(lines: &[u8]) -> bool {
    memchr_iter(b'\n', lines)
        .any(|at| at.checked_sub(1).and_then(|at| lines.get(at)) != Some(&b'\r'))
}

/// Takes up to `most` bytes.
fn take_bytes(input: &mut BytesMut, most: u64) -> Bytes {
    let count = usize::try_from(most).map_or(input.len(), |most| most.min(input.len()));
    match input.get(..count) {
        Some(short) if count <= COPY_MAX => {
            let copy = Bytes::copy_from_slice(short);
            input.advance(count);
            copy
        }
        _ => input.split_to(count).freeze(),
    }
}

pub(crate) fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}
