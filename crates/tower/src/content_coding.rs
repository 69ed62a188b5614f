//! Decodes the content coding of a request body, within limits: on the length of the result, on its
//! ratio to the coded length, and on the number of gzip members.

use std::io::{self, Read};

use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use http::{HeaderMap, header};
use semel::core::Problem;

use crate::refusal::RequestRefusal;

/// Maximum ratio of decoded to coded length. JSON of similar records reaches 37 to 46 at the best
/// level of gzip. DEFLATE can reach 1,032; without a limit, 1 KiB could cost as much time as 1 MiB.
const RATIO_MAX: usize = 100;

/// Decoded length up to which the ratio is not checked: decoding takes less than a millisecond.
const RATIO_FREE_BYTES: usize = 64 * 1024;

/// Maximum number of members of a gzip body. One is usual; `bgzip` writes one for each 64 KiB. An
/// empty member has 20 bytes and costs microseconds, so 1 MiB of them would cost 100 ms.
const GZIP_MEMBERS_MAX: usize = 128;

/// The content coding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Identity,
    Gzip,
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
        if is("gzip") || is("x-gzip") {
            Self::Gzip
        } else if is("deflate") {
            Self::Deflate
        } else if is("identity") || name.is_empty() {
            Self::Identity
        } else {
            Self::Other
        }
    }

    /// Maximum decoded length of a body of `coded` bytes.
    pub(crate) const fn decoded_bytes_max(self, coded: usize) -> usize {
        match self {
            Self::Identity | Self::Other => coded,
            Self::Gzip | Self::Deflate => {
                let by_ratio = coded.saturating_mul(RATIO_MAX);
                if by_ratio > RATIO_FREE_BYTES { by_ratio } else { RATIO_FREE_BYTES }
            }
        }
    }

    /// Decodes a body, up to `max` bytes. `None` if it is not coded.
    pub(crate) fn decode(self, body: &[u8], max: usize) -> Result<Option<Vec<u8>>, RequestRefusal> {
        let mut output =
            DecodeOutput { bytes: Vec::new(), max, ratio: self.decoded_bytes_max(body.len()) };
        match self {
            _ if body.is_empty() => return Ok(None),
            Self::Identity | Self::Other => return Ok(None),
            Self::Gzip => gunzip(body, &mut output)?,
            Self::Deflate => inflate(body, &mut output)?,
        }
        Ok(Some(output.bytes))
    }
}

/// The decoded bytes, and their limits.
struct DecodeOutput {
    bytes: Vec<u8>,
    max: usize,
    /// The limit by the ratio.
    ratio: usize,
}

impl DecodeOutput {
    /// Reads a decoder to its end.
    fn fill(&mut self, decoder: &mut impl Read) -> Result<(), RequestRefusal> {
        let left = self.max.min(self.ratio).saturating_sub(self.bytes.len());
        let limit = u64::try_from(left).unwrap_or(u64::MAX).saturating_add(1);
        match decoder.take(limit).read_to_end(&mut self.bytes) {
            Ok(_) if self.bytes.len() > self.max => Err(too_large(self.max)),
            Ok(_) if self.bytes.len() > self.ratio => Err(expands_too_much()),
            Ok(_) => Ok(()),
            Err(error) => Err(malformed(&error)),
        }
    }
}

/// The refusal of a body of more than `max` bytes.
pub(crate) fn too_large(max: usize) -> RequestRefusal {
    let detail = format!("this route guards bodies of up to {max} bytes; nothing was done");
    RequestRefusal::detailed(Problem::BodyTooLarge, detail)
}

fn expands_too_much() -> RequestRefusal {
    let detail = format!(
        "the body is more than {RATIO_MAX} times as long as its compressed form; send it \
         uncompressed; nothing was done"
    );
    RequestRefusal::detailed(Problem::BodyTooLarge, detail)
}

fn malformed(error: &io::Error) -> RequestRefusal {
    let detail = format!("the body does not match its Content-Encoding: {error}; nothing was done");
    RequestRefusal::detailed(Problem::BodyMalformed, detail)
}

fn gunzip(mut body: &[u8], output: &mut DecodeOutput) -> Result<(), RequestRefusal> {
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut member = GzDecoder::new(body);
        output.fill(&mut member)?;
        body = member.into_inner();
        if body.is_empty() {
            return Ok(());
        }
    }
    let detail = format!(
        "the gzip body has more than {GZIP_MEMBERS_MAX} members; send it as one; nothing was done"
    );
    Err(RequestRefusal::detailed(Problem::BodyTooLarge, detail))
}

/// HTTP's `deflate` is the zlib format; some senders omit its header.
fn inflate(body: &[u8], output: &mut DecodeOutput) -> Result<(), RequestRefusal> {
    let zlib = match body {
        [first, second, ..] => {
            first & 0x0F == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
        }
        _ => false,
    };
    let rest = if zlib {
        let mut decoder = ZlibDecoder::new(body);
        output.fill(&mut decoder)?;
        decoder.into_inner()
    } else {
        let mut decoder = DeflateDecoder::new(body);
        output.fill(&mut decoder)?;
        decoder.into_inner()
    };
    // Trailing bytes would be forwarded without being compared.
    let trailing = || malformed(&io::Error::other("there are bytes after the coded data"));
    if rest.is_empty() { Ok(()) } else { Err(trailing()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };

    use super::*;

    const MIB: usize = 1 << 20;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn problem(coding: ContentCoding, body: &[u8]) -> Option<(Problem, String)> {
        let refusal = coding.decode(body, MIB).err()?;
        Some((refusal.problem, refusal.detail.unwrap_or_default().into_owned()))
    }

    #[test]
    fn a_body_that_expands_too_much_is_refused() {
        let zeros = vec![b'0'; MIB];
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(&zeros).unwrap();
        for (coding, body) in [
            (ContentCoding::Gzip, gzip(&zeros)),
            (ContentCoding::Deflate, zlib.finish().unwrap()),
            // Each member alone would be allowed.
            (ContentCoding::Gzip, gzip(&zeros[..RATIO_FREE_BYTES]).repeat(16)),
        ] {
            let (problem, detail) = problem(coding, &body).unwrap();
            assert_eq!(problem, Problem::BodyTooLarge);
            assert!(detail.contains("100 times"), "{detail}");
        }
        // The ratio of a short body is not checked.
        let short = gzip(&zeros[..RATIO_FREE_BYTES]);
        assert!(short.len() < 100, "{}", short.len());
        let decoded = ContentCoding::Gzip.decode(&short, MIB).unwrap().unwrap();
        assert_eq!(decoded.len(), RATIO_FREE_BYTES);
    }

    #[test]
    fn json_of_similar_records_is_not_refused() {
        let record = |id: usize| {
            let time = format!("2026-11-18T00:{:02}:{:02}Z", id / 60 % 60, id % 60);
            format!(r#"{{"time":"{time}","level":"info","message":"served","status":200}},"#)
        };
        let json: String = (0..12_000).map(record).collect();
        let body = gzip(json.as_bytes());
        assert!(json.len() > 25 * body.len(), "{} in {}", json.len(), body.len());
        assert_eq!(ContentCoding::Gzip.decode(&body, MIB).unwrap().unwrap(), json.as_bytes());
    }

    #[test]
    fn a_gzip_body_with_too_many_members_is_refused() {
        let members = |count: usize| [gzip(b"").repeat(count - 1), gzip(b"{}")].concat();
        let decoded = ContentCoding::Gzip.decode(&members(GZIP_MEMBERS_MAX), MIB);
        assert_eq!(decoded.unwrap().unwrap(), b"{}");
        let (kind, detail) = problem(ContentCoding::Gzip, &members(GZIP_MEMBERS_MAX + 1)).unwrap();
        assert_eq!(kind, Problem::BodyTooLarge);
        assert!(detail.contains("members"), "{detail}");
    }
}
