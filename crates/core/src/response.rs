//! What is recorded when an operation ends, and its bytes on disk.
//!
//! An [`Answer`] is already encoded: it is made once, compared as bytes (law 6), handed around
//! without copying, and read only where it is replayed. Its encoding carries a version:
//!
//! ```text
//! answer   = version(1) kind
//! kind     = 0x00 status fields fields body      a response: headers, then trailers
//!          | 0x01 status                         it ran, but its answer was not retained
//!          | 0x02                                `on_unknown = "fail"` ended it
//! status   = two bytes, high byte first
//! fields   = count { length name length value }
//! body     = every byte that is left
//! count, length = unsigned LEB128 in its shortest form
//! ```

use bytes::Bytes;

use crate::Problem;

/// The version that [`Answer`] writes. Older ones stay readable for as long as retention lasts.
const VERSION: u8 = 1;

const RESPONSE: u8 = 0;
const NOT_RETAINED: u8 = 1;
const FAILED: u8 = 2;

/// One header or trailer line. Names may repeat, and their order is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// The name, in lower case as HTTP/2 writes it.
    pub name: Bytes,
    /// The value, byte for byte.
    pub value: Bytes,
}

impl Field {
    /// A field from anything that becomes bytes.
    pub fn new(name: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A response as it is replayed: status, headers in order and number, body bytes, trailers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoredResponse {
    /// The status code.
    pub status: u16,
    /// The kept headers.
    pub headers: Vec<Field>,
    /// The body.
    pub body: Bytes,
    /// The kept trailers (gRPC's status lives there).
    pub trailers: Vec<Field>,
}

/// What a completed record answers with, read from an [`Answer`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Replay this.
    Response(StoredResponse),
    /// It ran and answered with this status, but the answer is not stored: it was too large, a
    /// stream or cut, or the route says so. It cannot be replayed (`response-not-retained`).
    NotRetained {
        /// The status it answered with.
        status: u16,
    },
    /// Its outcome was unknown and the route said `fail` (`operation-failed`).
    Failed,
}

/// An encoded answer. Cheap to clone; equal when its bytes are equal.
///
/// ```
/// use semel_core::{Answer, Content, Field, StoredResponse};
///
/// let response = StoredResponse {
///     status: 201,
///     headers: vec![Field::new("link", "</a>"), Field::new("link", "</b>")],
///     body: "{\"id\":7}".into(),
///     trailers: vec![],
/// };
/// let answer = Answer::response(&response);
/// assert_eq!(answer.read()?, Content::Response(response));
/// # Ok::<(), semel_core::DecodeError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Answer(Bytes);

/// Stored bytes that are not an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Written by a newer Semel, or not by Semel.
    #[error("the answer has format version {0}; this Semel reads version {VERSION}")]
    Version(u8),
    /// The bytes end too early or say something impossible.
    #[error("the answer is damaged at byte {0}")]
    Damaged(usize),
}

impl Answer {
    /// Encodes a response.
    #[must_use]
    pub fn response(response: &StoredResponse) -> Self {
        fn pairs(fields: &[Field]) -> Vec<(&[u8], &[u8])> {
            fields.iter().map(|field| (&*field.name, &*field.value)).collect()
        }
        let (headers, trailers) = (pairs(&response.headers), pairs(&response.trailers));
        Self::encode(response.status, &headers, &trailers, &response.body)
    }

    /// Encodes a response from its parts, each header and trailer as name and value: what
    /// [`Answer::response`] does, without a copy of each field.
    #[must_use]
    pub fn encode(
        status: u16,
        headers: &[(&[u8], &[u8])],
        trailers: &[(&[u8], &[u8])],
        body: &[u8],
    ) -> Self {
        let size = |fields: &[(&[u8], &[u8])]| -> usize {
            let size = |name: &[u8], value: &[u8]| name.len().saturating_add(value.len());
            fields.iter().map(|(name, value)| size(name, value).saturating_add(8)).sum()
        };
        let size = size(headers).saturating_add(size(trailers)).saturating_add(body.len());
        let mut out = Vec::with_capacity(size.saturating_add(16));
        out.extend([VERSION, RESPONSE]);
        out.extend(status.to_be_bytes());
        put_fields(&mut out, headers);
        put_fields(&mut out, trailers);
        out.extend_from_slice(body);
        Self(out.into())
    }

    /// It ran and answered with `status`, but the answer itself is not kept.
    #[must_use]
    pub fn not_retained(status: u16) -> Self {
        let [high, low] = status.to_be_bytes();
        Self(Bytes::copy_from_slice(&[VERSION, NOT_RETAINED, high, low]))
    }

    /// The outcome was unknown and the route said `fail`.
    #[must_use]
    pub const fn failed() -> Self {
        Self(Bytes::from_static(&[VERSION, FAILED]))
    }

    /// The same answer in memory of its own, of exactly its size: what is kept for long must not
    /// keep a larger buffer alive.
    #[must_use]
    pub fn compact(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }

    /// Takes stored bytes after checking that they can be read.
    pub fn from_stored(bytes: Bytes) -> Result<Self, DecodeError> {
        let answer = Self(bytes);
        answer.read()?;
        Ok(answer)
    }

    /// The bytes to store.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The record that the operation ran, without its body; `None` if there is no body.
    #[must_use]
    pub fn without_body(&self) -> Option<Self> {
        match self.read() {
            Ok(Content::Response(response)) => Some(Self::not_retained(response.status)),
            Ok(Content::NotRetained { .. } | Content::Failed) | Err(_) => None,
        }
    }

    /// The problem that a repeat gets, if there is nothing to replay.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        match self.0.get(..2)? {
            [VERSION, NOT_RETAINED] => Some(Problem::ResponseNotRetained),
            [VERSION, FAILED] => Some(Problem::OperationFailed),
            _ => None,
        }
    }

    /// Decodes; names, values and body share the answer's memory.
    pub fn read(&self) -> Result<Content, DecodeError> {
        let mut reader = AnswerReader { bytes: &self.0, at: 0 };
        let version = reader.byte()?;
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        let content = match reader.byte()? {
            RESPONSE => {
                let status = reader.status()?;
                let headers = reader.fields()?;
                let trailers = reader.fields()?;
                let body = reader.take(self.0.len().saturating_sub(reader.at))?;
                Content::Response(StoredResponse { status, headers, body, trailers })
            }
            NOT_RETAINED => Content::NotRetained { status: reader.status()? },
            FAILED => Content::Failed,
            _ => return Err(reader.damaged()),
        };
        if reader.at == self.0.len() { Ok(content) } else { Err(reader.damaged()) }
    }
}

// === writing ===

fn put_fields(out: &mut Vec<u8>, fields: &[(&[u8], &[u8])]) {
    put_number(out, fields.len());
    for (name, value) in fields {
        for part in [name, value] {
            put_number(out, part.len());
            out.extend_from_slice(part);
        }
    }
}

fn put_number(out: &mut Vec<u8>, mut number: usize) {
    loop {
        // The mask keeps seven bits, so the conversion cannot fail.
        let low = u8::try_from(number & 0x7f).unwrap_or_default();
        number >>= 7;
        if number == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

// === reading ===

struct AnswerReader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl AnswerReader<'_> {
    const fn damaged(&self) -> DecodeError {
        DecodeError::Damaged(self.at)
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(self.damaged())?;
        self.at = self.at.saturating_add(1);
        Ok(byte)
    }

    fn status(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn take(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(self.damaged())?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    /// An unsigned LEB128 number. Only its shortest form is read, so that equal answers have equal
    /// bytes.
    fn number(&mut self) -> Result<usize, DecodeError> {
        let (mut number, mut shift) = (0_usize, 0_u32);
        loop {
            let byte = self.byte()?;
            let bits = usize::from(byte & 0x7f);
            let shifted = bits.checked_shl(shift).filter(|s| s.checked_shr(shift) == Some(bits));
            number |= shifted.ok_or(self.damaged())?;
            if byte & 0x80 == 0 {
                let shortest = byte != 0 || shift == 0;
                return if shortest { Ok(number) } else { Err(self.damaged()) };
            }
            shift = shift.saturating_add(7);
        }
    }

    fn fields(&mut self) -> Result<Vec<Field>, DecodeError> {
        let count = self.number()?;
        // A field takes two bytes at least: a count beyond that is a lie, found before memory is
        // set aside for it.
        if count > self.bytes.len().saturating_sub(self.at) / 2 {
            return Err(self.damaged());
        }
        let mut fields = Vec::with_capacity(count);
        for _ in 0..count {
            let name = self.number()?;
            let name = self.take(name)?;
            let value = self.number()?;
            fields.push(Field { name, value: self.take(value)? });
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields() -> impl Strategy<Value = Vec<Field>> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200);
        let field = (bytes(), bytes()).prop_map(|(name, value)| Field::new(name, value));
        proptest::collection::vec(field, 0..5)
    }

    proptest! {
        #[test]
        fn a_response_is_read_back_byte_for_byte(
            status in any::<u16>(), headers in fields(), trailers in fields(),
            body in proptest::collection::vec(any::<u8>(), 0..1000),
        ) {
            let response = StoredResponse { status, headers, body: body.into(), trailers };
            let answer = Answer::response(&response);
            prop_assert_eq!(answer.read(), Ok(Content::Response(response)));
        }

        #[test]
        fn a_readable_stored_answer_is_encoded_identically(
            bytes in proptest::collection::vec(0_u8..8, 0..40),
        ) {
            if let Ok(answer) = Answer::from_stored(bytes.into()) {
                let again = match answer.read().unwrap() {
                    Content::Response(response) => Answer::response(&response),
                    Content::NotRetained { status } => Answer::not_retained(status),
                    Content::Failed => Answer::failed(),
                };
                prop_assert_eq!(again, answer);
            }
        }
    }

    #[test]
    fn repeated_headers_keep_their_order_and_number() {
        let headers =
            vec![Field::new("link", "1"), Field::new("vary", "a"), Field::new("link", "2")];
        let response = StoredResponse { status: 200, headers, ..StoredResponse::default() };
        assert_eq!(Answer::response(&response).read(), Ok(Content::Response(response)));
    }

    #[test]
    fn every_cut_of_the_fields_is_damage() {
        let headers = vec![Field::new("location", "/charges/7")];
        let answer =
            Answer::response(&StoredResponse { status: 201, headers, ..Default::default() });
        for end in 0..answer.as_bytes().len() {
            assert!(Answer::from_stored(answer.as_bytes().slice(..end)).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let newer = Answer::from_stored(Bytes::from_static(&[9, 0]));
        assert_eq!(newer, Err(DecodeError::Version(9)));
    }

    #[test]
    fn a_count_that_lies_sets_no_memory_aside() {
        let lie = [1, 0, 0, 200, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert!(matches!(
            Answer::from_stored(Bytes::copy_from_slice(&lie)),
            Err(DecodeError::Damaged(_))
        ));
    }
}
