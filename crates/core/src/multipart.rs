//! Multipart bodies (`multipart/form-data` and its kin) as ordered parts.
//!
//! The boundary is random on every attempt, so a retry never has the same bytes. What counts is
//! the sequence of parts: for each the header fields that mean something, and its content.
//!
//! ```
//! use semel_core::multipart::canonical;
//!
//! let first = b"--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--x--\r\n";
//! let again = b"--Y\r\ncontent-disposition: form-data;name=a\r\n\r\n1\r\n--Y--";
//! assert_eq!(canonical(first, b"x")?, canonical(again, b"Y")?);
//! # Ok::<(), semel_core::multipart::MultipartError>(())
//! ```
//!
//! # What counts
//!
//! `Content-Disposition` with all its parameters (`name`, `filename`, `filename*` and any other),
//! `Content-Type` and `Content-Transfer-Encoding`, in this order whatever the order they were
//! sent in, and the content byte by byte. The case of the value before the first semicolon and of
//! parameter names does not count, nor do quotes around a parameter that needs none, nor the
//! order of differently named parameters. Other fields of a part, the preamble, the epilogue and
//! white space after a boundary do not count.
//!
//! # What is refused
//!
//! Whatever could make one reader see a part where another sees none: a body without a first or
//! last boundary line, the boundary once more in the preamble or the epilogue, part headers that
//! do not end in an empty line or contain a stray line break, and anything over the limits
//! [`PARTS_MAX`] and [`PART_HEADER_BYTES_MAX`].
//!
//! # The canonical form
//!
//! Numbers and lengths are 8 bytes, the most significant first; *text* is a length and as many
//! bytes. For each part: the number of its fields that count; for each of these its name in lower
//! case (text) and its value; then the content (text). The value of a field is a byte 1, the value
//! before the first semicolon in lower case (text), the number of parameters and for each, sorted
//! by name, its name in lower case and its value without quotes, escapes left in (both text). A
//! value that is not of this form is a byte 0 and the value as it is (text).

mod headers;
pub(crate) mod params;
#[cfg(test)]
mod tests;

use memchr::memmem;

pub use headers::PartHeader;

/// How many parts a body may have.
pub const PARTS_MAX: usize = 1024;

/// How large the headers of one part may be.
pub const PART_HEADER_BYTES_MAX: usize = 16 << 10;

/// The longest boundary that RFC 2046 allows.
const BOUNDARY_BYTES_MAX: usize = 70;

/// One part of a multipart body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// The header fields that count, sorted by name.
    pub fields: Vec<PartHeader<'a>>,
    /// The content as it was sent: its transfer encoding is not undone.
    pub content: &'a [u8],
}

/// Why a multipart body was refused. The message tells the sender what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MultipartError {
    /// No boundary parameter, an empty one, or two.
    #[error("the multipart Content-Type has no boundary parameter, or two; send exactly one")]
    NoBoundary,
    /// A boundary that RFC 2046 does not allow.
    #[error("the multipart boundary is not 1 to 70 visible ASCII characters; choose another")]
    BadBoundary,
    /// The boundary is not in the body.
    #[error("the multipart body does not contain its boundary; send the parts it announces")]
    NoParts,
    /// No closing boundary.
    #[error("the multipart body has no closing boundary; send it to its end")]
    Unterminated,
    /// The boundary where it could be a part to one reader and not to another.
    #[error("the multipart boundary appears outside the parts; choose one that is not in the data")]
    StrayBoundary,
    /// More than [`PARTS_MAX`] parts.
    #[error("the multipart body has more than 1024 parts; send fewer")]
    TooManyParts,
    /// More than [`PART_HEADER_BYTES_MAX`] of headers in one part.
    #[error("the headers of part {part} are larger than 16 KiB; shorten them")]
    HeadersTooLarge {
        /// Which part, counted from 1.
        part: usize,
    },
    /// Headers that are not header fields, or are not followed by an empty line.
    #[error(
        "the headers of part {part} are malformed; send \"Name: value\" lines, then an empty one"
    )]
    Headers {
        /// Which part, counted from 1.
        part: usize,
    },
}

/// The canonical form of a multipart body.
///
/// # Errors
///
/// If the body cannot be cut into parts without doubt.
pub fn canonical(body: &[u8], boundary: &[u8]) -> Result<Vec<u8>, MultipartError> {
    let parts = parse(body, boundary)?;
    let mut out = Vec::with_capacity(body.len());
    for part in &parts {
        headers::write(&part.fields, &mut out);
        frame(part.content, &mut out);
    }
    Ok(out)
}

/// The parts of a multipart body, in order.
///
/// # Errors
///
/// If the body cannot be cut into parts without doubt.
pub fn parse<'a>(body: &'a [u8], boundary: &[u8]) -> Result<Vec<Part<'a>>, MultipartError> {
    let delimiter = delimiter(boundary)?;
    let dashes = delimiter.strip_prefix(b"\r\n").unwrap_or_default();
    let mut after = match memmem::find(body, dashes).and_then(|at| body.split_at_checked(at)) {
        None => return Err(MultipartError::NoParts),
        Some((preamble, rest)) if preamble.is_empty() || preamble.ends_with(b"\r\n") => {
            rest.get(dashes.len()..).unwrap_or_default()
        }
        Some(_) => return Err(MultipartError::StrayBoundary),
    };
    let finder = memmem::Finder::new(&delimiter);
    let mut parts = Vec::new();
    let mut line = BoundaryLine::read(after);
    loop {
        match line {
            BoundaryLine::Next(rest) => after = rest,
            BoundaryLine::Last(rest) if memmem::find(rest, dashes).is_none() => return Ok(parts),
            BoundaryLine::Last(_) | BoundaryLine::Content => {
                return Err(MultipartError::StrayBoundary);
            }
        }
        if parts.len() >= PARTS_MAX {
            return Err(MultipartError::TooManyParts);
        }
        let part;
        (part, line) = until_delimiter(after, &finder).ok_or(MultipartError::Unterminated)?;
        parts.push(headers::part(part, parts.len().saturating_add(1))?);
    }
}

/// What precedes the next line that is a delimiter, and that line.
fn until_delimiter<'a>(
    bytes: &'a [u8],
    finder: &memmem::Finder<'_>,
) -> Option<(&'a [u8], BoundaryLine<'a>)> {
    let mut searched = 0;
    loop {
        let found = finder.find(bytes.get(searched..)?)?;
        let start = searched.saturating_add(found);
        searched = start.saturating_add(finder.needle().len());
        match BoundaryLine::read(bytes.get(searched..)?) {
            // A line that only starts like a delimiter belongs to the content, which counts.
            BoundaryLine::Content => {}
            line @ (BoundaryLine::Next(_) | BoundaryLine::Last(_)) => {
                return Some((bytes.get(..start)?, line));
            }
        }
    }
}

/// What a line is that starts with the boundary.
enum BoundaryLine<'a> {
    /// A part starts after it.
    Next(&'a [u8]),
    /// It closes the body; the epilogue starts after it.
    Last(&'a [u8]),
    /// It is longer than a delimiter may be.
    Content,
}

impl<'a> BoundaryLine<'a> {
    /// Reads a line from after its boundary.
    fn read(bytes: &'a [u8]) -> Self {
        let (last, rest) = bytes.strip_prefix(b"--").map_or((false, bytes), |rest| (true, rest));
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        match (last, rest.get(padding..).unwrap_or_default()) {
            (true, []) => Self::Last(&[]),
            (true, [b'\r', b'\n', epilogue @ ..]) => Self::Last(epilogue),
            (false, [b'\r', b'\n', part @ ..]) => Self::Next(part),
            _ => Self::Content,
        }
    }
}

/// The line break, the dashes and the boundary that separate two parts.
fn delimiter(boundary: &[u8]) -> Result<Vec<u8>, MultipartError> {
    if boundary.is_empty() {
        return Err(MultipartError::NoBoundary);
    }
    let allowed = |byte: &u8| matches!(byte, b' '..=b'~') && !br#""\"#.contains(byte);
    let fits = boundary.len() <= BOUNDARY_BYTES_MAX && !boundary.ends_with(b" ");
    if !fits || !boundary.iter().all(allowed) {
        return Err(MultipartError::BadBoundary);
    }
    Ok([b"\r\n--", boundary].concat())
}

/// A length as 8 bytes. No length in memory is larger than that.
pub(crate) fn length(length: usize) -> [u8; 8] {
    u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes()
}

/// Appends a number as 8 bytes.
fn number(value: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&length(value));
}

/// Appends a text, its length first.
fn frame(text: &[u8], out: &mut Vec<u8>) {
    number(text.len(), out);
    out.extend_from_slice(text);
}
