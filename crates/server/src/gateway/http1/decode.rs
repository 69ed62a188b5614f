//! Reads the body of a message.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use httparse::Status;
use memchr::{memchr, memchr_iter};

use super::Fault;

/// How long the line before a chunk may be.
const LINE_MAX: usize = 4 * 1024;

/// How long what nobody reads may be in all such lines of a body together, above what is allowed
/// each of them: [`EXTENSION_FREE`], and twice as much as its chunk.
const EXTENSIONS_MAX: u64 = 16 * 1024;
const EXTENSION_FREE: u64 = 16;

/// How long the trailers may be.
const TRAILERS_MAX: usize = 16 * 1024;

/// How many fields they may have.
const FIELDS_MAX: usize = 100;

/// Up to here a copy is cheaper than to share the space it was read into, and keeps less of it.
const COPIED: usize = 2 * 1024;

/// What of a body is still to come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Decoder {
    /// So many bytes.
    Length(u64),
    Chunked {
        place: Place,
        /// How much has come that nobody reads, above what is allowed.
        extensions: u64,
    },
    /// All that comes.
    UntilClose,
    Done,
}

/// A place in a body of chunks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// Before the line that says how long a chunk is.
    Size,
    /// In a chunk, before so many bytes.
    Data(u64),
    /// Before the end of line after a chunk.
    End,
    /// After the last chunk.
    Trailers,
}

impl Decoder {
    pub(crate) const fn chunked() -> Self {
        Self::Chunked { place: Place::Size, extensions: 0 }
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// How many bytes are still to come, where that is known.
    pub(crate) const fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Done => Some(0),
            Self::Chunked { .. } | Self::UntilClose => None,
        }
    }

    /// What a closed connection means here.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        match self {
            Self::UntilClose | Self::Done => {
                *self = Self::Done;
                Ok(())
            }
            Self::Length(_) | Self::Chunked { .. } => Err(Fault::Ended),
        }
    }

    /// The next frame of what has come. `None` if more must come first, or nothing will.
    pub(crate) fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame<Bytes>>, Fault> {
        match self {
            Self::Done => Ok(None),
            Self::UntilClose if input.is_empty() => Ok(None),
            Self::UntilClose => Ok(Some(Frame::data(split(input, u64::MAX)))),
            Self::Length(left) => {
                let data = split(input, *left);
                *left -= length(&data);
                if *left == 0 {
                    *self = Self::Done;
                }
                Ok((!data.is_empty()).then(|| Frame::data(data)))
            }
            Self::Chunked { place, extensions } => {
                let (next, frame) = place.next(input, extensions)?;
                match next {
                    Some(next) => *place = next,
                    None => *self = Self::Done,
                }
                Ok(frame)
            }
        }
    }
}

impl Place {
    /// Where it goes on, and with what. Nowhere after the end.
    fn next(
        self,
        input: &mut BytesMut,
        extensions: &mut u64,
    ) -> Result<(Option<Self>, Option<Frame<Bytes>>), Fault> {
        let mut place = self;
        loop {
            place = match place {
                Self::Size => match chunk_size(input, extensions)? {
                    None => return Ok((Some(place), None)),
                    Some(0) => Self::Trailers,
                    Some(size) => Self::Data(size),
                },
                Self::Data(_) if input.is_empty() => return Ok((Some(place), None)),
                Self::Data(left) => {
                    let data = split(input, left);
                    let left = left - length(&data);
                    let next = if left == 0 { Self::End } else { Self::Data(left) };
                    return Ok((Some(next), Some(Frame::data(data))));
                }
                Self::End => match input.get(..2) {
                    None => return Ok((Some(place), None)),
                    Some(b"\r\n") => {
                        input.advance(2);
                        Self::Size
                    }
                    Some(_) => return Err(Fault::Malformed("a chunk does not end where it says")),
                },
                Self::Trailers => {
                    return Ok(match trailers(input)? {
                        None => (Some(place), None),
                        Some(trailers) if trailers.is_empty() => (None, None),
                        Some(trailers) => (None, Some(Frame::trailers(trailers))),
                    });
                }
            };
        }
    }
}

/// Takes the line before a chunk: how long that is, and what nobody reads.
fn chunk_size(input: &mut BytesMut, extensions: &mut u64) -> Result<Option<u64>, Fault> {
    const WRONG: Fault = Fault::Malformed("a chunk does not say how long it is");

    let Some(end) = memchr(b'\n', input) else {
        return if input.len() > LINE_MAX { Err(WRONG) } else { Ok(None) };
    };
    let line = input.get(..end).and_then(|line| line.strip_suffix(b"\r")).ok_or(WRONG)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at(digits);
    let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let is_extension = matches!(rest.get(blanks..), Some([] | [b';', ..]));
    // To another reader a bare CR may be the end of a line.
    let is_extension = is_extension && memchr(b'\r', line).is_none();
    if line.len() > LINE_MAX || !(1..=16).contains(&digits.len()) || !is_extension {
        return Err(WRONG);
    }
    let digits = str::from_utf8(digits).map_err(|_| WRONG)?;
    let size = u64::from_str_radix(digits, 16).map_err(|_| WRONG)?;
    let allowed = size.saturating_mul(2).saturating_add(EXTENSION_FREE);
    let besides = u64::try_from(rest.len()).unwrap_or(u64::MAX);
    *extensions = extensions.saturating_add(besides).saturating_sub(allowed);
    if *extensions > EXTENSIONS_MAX {
        return Err(Fault::Malformed("its chunks say too much besides"));
    }
    input.advance(end + 1);
    Ok(Some(size))
}

/// Takes what follows the last chunk. `None` if it is not yet whole.
fn trailers(input: &mut BytesMut) -> Result<Option<HeaderMap>, Fault> {
    const WRONG: Fault = Fault::Malformed("its trailers cannot be read");

    if input.starts_with(b"\r\n") {
        input.advance(2);
        return Ok(Some(HeaderMap::new()));
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let (end, fields) = match httparse::parse_headers(input, &mut fields) {
        Ok(Status::Complete(parsed)) => parsed,
        Ok(Status::Partial) if input.len() <= TRAILERS_MAX => return Ok(None),
        Ok(Status::Partial) | Err(_) => return Err(WRONG),
    };
    if end > TRAILERS_MAX || has_bare_lf(input.get(..end).unwrap_or_default()) {
        return Err(WRONG);
    }
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| WRONG)?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| WRONG)?;
        trailers.append(name, value);
    }
    input.advance(end);
    Ok(Some(trailers))
}

/// Whether a line ends with LF alone. Another reader may not take that for its end, and go on.
pub(super) fn has_bare_lf(lines: &[u8]) -> bool {
    memchr_iter(b'\n', lines)
        .any(|at| at.checked_sub(1).and_then(|at| lines.get(at)) != Some(&b'\r'))
}

/// Takes up to so many bytes.
fn split(input: &mut BytesMut, most: u64) -> Bytes {
    let count = usize::try_from(most).map_or(input.len(), |most| most.min(input.len()));
    match input.get(..count) {
        Some(short) if count <= COPIED => {
            let copy = Bytes::copy_from_slice(short);
            input.advance(count);
            copy
        }
        _ => input.split_to(count).freeze(),
    }
}

pub(super) fn length(data: &Bytes) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}
