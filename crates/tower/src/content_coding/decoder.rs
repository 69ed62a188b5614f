//! Decodes gzip and deflate, within limits.

use std::io::{self, Read};

use flate2::bufread::{DeflateDecoder, GzDecoder, ZlibDecoder};
use semel::core::Problem;

use super::too_large;
use crate::refusal::RequestRefusal;

/// Maximum ratio of decoded to coded length. JSON of similar records reaches 37 to 46 at the best
/// level of gzip. DEFLATE can reach 1,032; without a limit, 1 KiB could cost as much time as 1 MiB.
const RATIO_MAX: usize = 100;

/// Decoded length up to which the ratio is not checked: decoding takes less than a millisecond.
const RATIO_FREE_BYTES: usize = 64 * 1024;

/// Maximum number of members of a gzip body. One is usual; `bgzip` writes one for each 64 KiB. An
/// empty member has 20 bytes and costs microseconds, so 1 MiB of them would cost 100 ms.
const GZIP_MEMBERS_MAX: usize = 128;

/// Maximum decoded length of a body of `coded` bytes, by their ratio.
pub(super) const fn bytes_max_by_ratio(coded: usize) -> usize {
    let by_ratio = coded.saturating_mul(RATIO_MAX);
    if by_ratio > RATIO_FREE_BYTES { by_ratio } else { RATIO_FREE_BYTES }
}

/// The decoded bytes, and their limits.
struct DecodeOutput {
    bytes: Vec<u8>,
    max: usize,
    /// The limit by the ratio.
    ratio: usize,
}

impl DecodeOutput {
    fn of(body: &[u8], max: usize) -> Self {
        Self { bytes: Vec::new(), max, ratio: bytes_max_by_ratio(body.len()) }
    }

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

pub(super) fn gunzip(mut body: &[u8], max: usize) -> Result<Vec<u8>, RequestRefusal> {
    let mut output = DecodeOutput::of(body, max);
    for _ in 0..GZIP_MEMBERS_MAX {
        let mut member = GzDecoder::new(body);
        output.fill(&mut member)?;
        body = member.into_inner();
        if body.is_empty() {
            return Ok(output.bytes);
        }
    }
    let detail = format!(
        "the gzip body has more than {GZIP_MEMBERS_MAX} members; send it as one; nothing was done"
    );
    Err(RequestRefusal::detailed(Problem::BodyTooLarge, detail))
}

/// HTTP's `deflate` is the zlib format; some senders omit its header.
pub(super) fn inflate(body: &[u8], max: usize) -> Result<Vec<u8>, RequestRefusal> {
    let mut output = DecodeOutput::of(body, max);
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
    if rest.is_empty() { Ok(output.bytes) } else { Err(trailing()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{
        Compression,
        write::{GzEncoder, ZlibEncoder},
    };

    use super::{super::ContentCoding, *};

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
