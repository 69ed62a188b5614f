//! Watches the bytes of an HTTP/1 client for requests whose end is a matter of opinion.
//!
//! Where two programs in a row disagree about where a request ends, a client can hide one request
//! in the body of another. RFC 9112 therefore has a proxy refuse a request with both
//! `Content-Length` and `Transfer-Encoding`, and one with a coding that it does not know. hyper's
//! server forgives both: it drops the length, and it asks only that the last coding be `chunked`.
//! By the time a service sees the request there is no trace of it, so it is caught here, in the
//! bytes, before hyper reads them. Everything else that RFC 9112 forbids (lengths that differ,
//! white space before a colon, folded lines, a bare CR, a NUL, `Transfer-Encoding` in HTTP/1.0)
//! hyper refuses by itself.
//!
//! A refusal is a byte of the field's line overwritten with NUL. hyper's parser accepts a NUL
//! nowhere in a head, so it answers 400 and closes, as it does for everything that is malformed.
//! The byte is never part of a line's end: hyper would wait for the end of a head that it cannot
//! see.
//!
//! To know what is a head, [`Framing`] follows the bodies too. It sees the same borders between
//! requests as hyper in every stream that hyper accepts, also where hyper is more lenient than the
//! RFC; where hyper accepts no more, nothing matters, because it closes the connection.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use memchr::memchr;

/// How every HTTP/2 connection begins. hyper refuses it as the beginning of an HTTP/1 request.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0";

const CHUNKED: &[u8] = b"chunked";

/// Follows what one client sends, and spoils a request that could be read in two ways.
#[derive(Debug)]
pub(crate) struct Framing {
    off: Arc<AtomicBool>,
    place: Place,
    length: Option<u64>,
    chunked: bool,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The beginning of the connection, of which this much is HTTP/2's.
    Preface(usize),
    /// What comes before a request: empty lines, if anything.
    Between,
    /// A line of a head, of which the rest says nothing about framing.
    Line,
    /// The beginning of a line after the request line.
    LineStart,
    /// A name that is so far the beginning of this field's.
    Name(Field, usize),
    /// The value of `Content-Length`.
    Length,
    /// The value of `Transfer-Encoding`, of which this much is `chunked`.
    Coding(usize),
    /// A body with this many bytes left.
    Body(u64),
    /// The digits of a chunk's size, which is this so far.
    ChunkSize(u64),
    /// What follows the digits: white space, extensions, the line's end.
    ChunkLine(u64),
    /// A chunk and its line end, with this many bytes left.
    Chunk(u64),
    /// The beginning of a trailer line, or of the line that ends the trailers.
    TrailerStart,
    /// A trailer line, up to its CR. hyper does not count a bare LF as its end.
    Trailer,
    /// The LF of a trailer line.
    TrailerLf,
    /// The last LF of a chunked body.
    LastLf,
    /// Nothing that is watched: HTTP/2.
    Unwatched,
    /// What follows a refused request, which nobody reads.
    Refused,
}

/// A field that says how long a body is.
#[derive(Clone, Copy, Debug)]
enum Field {
    ContentLength,
    TransferEncoding,
}

impl Framing {
    /// At the beginning of a connection. Once `off` is true, it speaks HTTP/1 no more.
    pub(crate) fn new(off: Arc<AtomicBool>) -> Self {
        Self { off, place: Place::Preface(0), length: None, chunked: false }
    }

    /// Whether it has spoiled a request. There is one on a connection at most: it is the last.
    pub(crate) const fn has_refused(&self) -> bool {
        matches!(self.place, Place::Refused)
    }

    /// Takes the next bytes of the connection, however they were cut, before hyper does.
    pub(crate) fn inspect(&mut self, bytes: &mut [u8]) {
        if self.off.load(Ordering::Relaxed) {
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.step(rest);
            rest = &mut rest[taken..];
        }
    }

    /// Takes some of the bytes, of which there is at least one. Where it takes none, the first byte
    /// belongs to the place that was found.
    fn step(&mut self, bytes: &mut [u8]) -> usize {
        let byte = bytes[0];
        let (taken, place) = match self.place {
            Place::Preface(matched) => preface(matched, byte),
            Place::Between if matches!(byte, b'\r' | b'\n') => (1, Place::Between),
            Place::Between => (0, Place::Line),
            Place::Line => skip_to(b'\n', bytes, Place::Line, Place::LineStart),
            Place::LineStart => match byte {
                b'\n' => (1, self.body()),
                b'\r' => (1, Place::LineStart),
                b'c' | b'C' => (1, Place::Name(Field::ContentLength, 1)),
                b't' | b'T' => (1, Place::Name(Field::TransferEncoding, 1)),
                _ => (0, Place::Line),
            },
            Place::Name(field, matched) => match field.name().get(matched) {
                Some(next) if next.eq_ignore_ascii_case(&byte) => {
                    (1, Place::Name(field, matched + 1))
                }
                None if byte == b':' => (1, self.value(field).unwrap_or_else(|| refuse(bytes))),
                Some(_) | None => (0, Place::Line),
            },
            Place::Length => match byte {
                b'0'..=b'9' => {
                    let digits = self.length.unwrap_or(0).saturating_mul(10);
                    self.length = Some(digits.saturating_add(u64::from(byte - b'0')));
                    (1, Place::Length)
                }
                b' ' | b'\t' => (1, Place::Length),
                _ => (0, Place::Line),
            },
            Place::Coding(matched) => match CHUNKED.get(matched) {
                Some(next) if next.eq_ignore_ascii_case(&byte) => (1, Place::Coding(matched + 1)),
                _ if matches!(byte, b' ' | b'\t') => (1, Place::Coding(matched)),
                _ if matches!(byte, b'\r' | b'\n') => (0, Place::Line),
                _ => (1, refuse(bytes)),
            },
            Place::Body(left) => skip(left, bytes, Place::Body, Place::Between),
            Place::ChunkSize(size) => match char::from(byte).to_digit(16) {
                Some(digit) => {
                    (1, Place::ChunkSize(size.saturating_mul(16).saturating_add(digit.into())))
                }
                None => (0, Place::ChunkLine(size)),
            },
            Place::ChunkLine(0) => skip_to(b'\n', bytes, self.place, Place::TrailerStart),
            Place::ChunkLine(size) => {
                skip_to(b'\n', bytes, self.place, Place::Chunk(size.saturating_add(2)))
            }
            Place::Chunk(left) => skip(left, bytes, Place::Chunk, Place::ChunkSize(0)),
            Place::TrailerStart if byte == b'\r' => (1, Place::LastLf),
            Place::TrailerStart => (0, Place::Trailer),
            Place::Trailer => skip_to(b'\r', bytes, Place::Trailer, Place::TrailerLf),
            Place::TrailerLf => (1, Place::TrailerStart),
            Place::LastLf => (1, Place::Between),
            Place::Unwatched | Place::Refused => (bytes.len(), self.place),
        };
        self.place = place;
        taken
    }

    /// Where the value of a field is that was just named; `None` if the field must not be here.
    fn value(&mut self, field: Field) -> Option<Place> {
        match field {
            Field::ContentLength if self.chunked => None,
            Field::ContentLength => {
                // hyper takes the same length twice. It checks that they are the same.
                self.length = Some(0);
                Some(Place::Length)
            }
            Field::TransferEncoding if self.chunked || self.length.is_some() => None,
            Field::TransferEncoding => {
                self.chunked = true;
                Some(Place::Coding(0))
            }
        }
    }

    /// What follows the head that has just ended.
    fn body(&mut self) -> Place {
        match (mem::take(&mut self.chunked), self.length.take()) {
            (true, _) => Place::ChunkSize(0),
            (false, None | Some(0)) => Place::Between,
            (false, Some(length)) => Place::Body(length),
        }
    }
}

impl Field {
    const fn name(self) -> &'static [u8] {
        match self {
            Self::ContentLength => b"content-length",
            Self::TransferEncoding => b"transfer-encoding",
        }
    }
}

fn preface(matched: usize, byte: u8) -> (usize, Place) {
    match HTTP2_PREFACE.get(matched) {
        Some(next) if *next == byte => (1, Place::Preface(matched + 1)),
        Some(_) if matched == 0 => (0, Place::Between),
        Some(_) => (0, Place::Line),
        None => (1, Place::Unwatched),
    }
}

/// Skips up to and including a byte.
fn skip_to(end: u8, bytes: &[u8], before: Place, after: Place) -> (usize, Place) {
    memchr(end, bytes).map_or((bytes.len(), before), |at| (at + 1, after))
}

/// Skips bytes that are only counted.
fn skip(left: u64, bytes: &[u8], more: fn(u64) -> Place, done: Place) -> (usize, Place) {
    match usize::try_from(left) {
        Ok(left) if left <= bytes.len() => (left, done),
        _ => (bytes.len(), more(left - bytes.len() as u64)),
    }
}

fn refuse(bytes: &mut [u8]) -> Place {
    bytes[0] = 0;
    Place::Refused
}

#[cfg(test)]
mod tests;
