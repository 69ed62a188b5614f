//! What a guarded request means: its body up to the limit, its content coding undone, its
//! fingerprint.

use std::{
    borrow::Cow,
    error::Error,
    io::{self, Read},
    pin::pin,
};

use bytes::Bytes;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use http::{HeaderMap, Uri, header, request::Parts};
use http_body::Body;
use http_body_util::LengthLimitError;
use semel::core::{BodyKind, BodyRule, Fingerprint, FingerprintRule, Meaning, Problem};

use crate::{
    BoxError,
    body::Whole,
    gather::{Filled, Gather},
    refusal::Refusal,
};

/// Reads a body, at most `max` bytes of it.
pub(crate) async fn read<B>(headers: &HeaderMap, body: B, max: usize) -> Result<Whole, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if is_declared_over(headers, &body, max) {
        return Err(too_large(max));
    }
    let mut gather = Gather::default();
    match gather.fill(pin!(body), max).await {
        Ok(Filled::Whole) => Ok(gather.finish()),
        Ok(Filled::Over) => Err(too_large(max)),
        Err(error) => {
            let error: BoxError = error.into();
            if is_over_a_limit(&*error) {
                return Err(Problem::BodyTooLarge.into());
            }
            let detail = format!("the body broke off while it was read: {error}; nothing was done");
            Err(Refusal::detailed(Problem::BodyMalformed, detail))
        }
    }
}

/// Whether a body says of itself that it is larger than `max`.
pub(crate) fn is_declared_over<B: Body>(headers: &HeaderMap, body: &B, max: usize) -> bool {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    declared.max(body.size_hint().lower()) > u64::try_from(max).unwrap_or(u64::MAX)
}

/// Whether a body ended because another layer limits it, and that is all that is wrong with it.
pub(crate) fn is_over_a_limit(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<LengthLimitError>() {
            return true;
        }
        next = error.source();
    }
    false
}

fn too_large(max: usize) -> Refusal {
    let detail = format!("this route guards bodies of up to {max} bytes; nothing was done");
    Refusal::detailed(Problem::BodyTooLarge, detail)
}

/// A copy of as much of a head as [`Plain::fingerprint`] asks.
pub(crate) fn head(parts: &Parts) -> Parts {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = parts.method.clone();
    head.uri = parts.uri.clone();
    head.headers = parts.headers.clone();
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        head.extensions.insert(original.clone());
    }
    head
}

/// A body as its sender meant it.
#[derive(Debug)]
pub(crate) struct Plain<'a> {
    pub(crate) kind: BodyKind,
    pub(crate) body: Cow<'a, [u8]>,
    /// Whether the content coding is one that cannot be undone here, so that only bytes can be
    /// compared.
    pub(crate) opaque: bool,
}

impl<'a> Plain<'a> {
    /// Undoes the content coding, up to `max` bytes.
    pub(crate) fn of(headers: &HeaderMap, body: &'a [u8], max: usize) -> Result<Self, Refusal> {
        let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
        let coding = match (codings.next(), codings.next()) {
            (None, _) => Coding::Identity,
            (Some(coding), None) => Coding::of(coding.as_bytes()),
            (Some(_), Some(_)) => Coding::Other,
        };
        let (body, opaque) = match coding {
            _ if body.is_empty() => (Cow::Borrowed(body), false),
            Coding::Identity => (Cow::Borrowed(body), false),
            Coding::Other => (Cow::Borrowed(body), true),
            Coding::Gzip => (decoded(MultiGzDecoder::new(body), max)?.into(), false),
            Coding::Deflate => (inflated(body, max)?.into(), false),
        };
        let kind = if opaque {
            BodyKind::Bytes
        } else {
            let content_type = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
            BodyKind::of(content_type, body.is_empty())
        };
        Ok(Self { kind, body, opaque })
    }

    /// The method and, after a space, which no method can contain, the coding that was not undone:
    /// the same bytes under another coding, or under none, are another body.
    fn method<'p>(&self, parts: &'p Parts, rule: &FingerprintRule) -> Cow<'p, str> {
        let method = parts.method.as_str();
        if !self.opaque || rule.body == BodyRule::Ignore {
            return method.into();
        }
        let codings = parts.headers.get_all(header::CONTENT_ENCODING).iter();
        let codings = codings.map(|line| line.as_bytes().trim_ascii().to_ascii_lowercase());
        let codings = codings.collect::<Vec<_>>().join(&b", "[..]);
        format!("{method} {}", codings.escape_ascii()).into()
    }

    /// What the request means.
    pub(crate) fn fingerprint(
        self,
        parts: &Parts,
        host: Option<&str>,
        rule: &FingerprintRule,
    ) -> Result<Fingerprint, Refusal> {
        let (path, query) = target(parts);
        let meaning = Meaning {
            method: &self.method(parts, rule),
            host,
            path: &path,
            query: query.as_deref(),
            headers: &listed(&parts.headers, rule),
            kind: self.kind,
            body: &self.body,
        };
        Fingerprint::of(&meaning, rule)
            .map_err(|error| Refusal::detailed(Problem::BodyMalformed, error.to_string()))
    }
}

/// The lines of the headers that count.
fn listed<'a>(headers: &'a HeaderMap, rule: &'a FingerprintRule) -> Vec<(&'a str, &'a [u8])> {
    let lines = rule.headers.iter().flat_map(|name| {
        let lines = headers.get_all(name.as_str()).iter();
        lines.map(move |line| (name.as_str(), line.as_bytes()))
    });
    lines.collect()
}

/// Path and query as the client sent them: a nested router strips its prefix, and two routes that
/// are nested under different ones must not mean the same. What else was made of them on the way
/// counts too. A space, which neither can contain, joins the two.
pub(crate) fn target(parts: &Parts) -> (Cow<'_, str>, Option<Cow<'_, str>>) {
    let (path, query) = (parts.uri.path(), parts.uri.query());
    let Some(original) = original_uri(parts) else { return (path.into(), query.map(Into::into)) };
    let (sent_path, sent_query) = (original.path(), original.query());
    let path = if sent_path.ends_with(path) {
        sent_path.into()
    } else {
        [sent_path, path].join(" ").into()
    };
    let marked = |query: Option<&str>| query.map(|query| format!("?{query}")).unwrap_or_default();
    let query = if sent_query == query {
        query.map(Into::into)
    } else {
        Some([marked(sent_query), marked(query)].join(" ").into())
    };
    (path, query)
}

#[cfg(feature = "axum")]
fn original_uri(parts: &Parts) -> Option<&Uri> {
    parts.extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0)
}

#[cfg(not(feature = "axum"))]
const fn original_uri(_: &Parts) -> Option<&Uri> {
    None
}

enum Coding {
    Identity,
    Gzip,
    Deflate,
    Other,
}

impl Coding {
    fn of(value: &[u8]) -> Self {
        let value = value.trim_ascii();
        let is = |name: &str| value.eq_ignore_ascii_case(name.as_bytes());
        if is("gzip") || is("x-gzip") {
            Self::Gzip
        } else if is("deflate") {
            Self::Deflate
        } else if is("identity") || value.is_empty() {
            Self::Identity
        } else {
            Self::Other
        }
    }
}

/// HTTP's `deflate` is the zlib format; some senders leave its frame out.
fn inflated(body: &[u8], max: usize) -> Result<Vec<u8>, Refusal> {
    let zlib = match body {
        [first, second, ..] => {
            first & 0x0F == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31)
        }
        _ => false,
    };
    if zlib {
        decoded(Exactly(ZlibDecoder::new(body), |decoder| decoder.get_ref().is_empty()), max)
    } else {
        decoded(Exactly(DeflateDecoder::new(body), |decoder| decoder.get_ref().is_empty()), max)
    }
}

fn decoded(decoder: impl Read, max: usize) -> Result<Vec<u8>, Refusal> {
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let mut out = Vec::new();
    match decoder.take(limit).read_to_end(&mut out) {
        Ok(_) if out.len() > max => Err(too_large(max)),
        Ok(_) => Ok(out),
        Err(error) => {
            let detail = format!(
                "the body is not what its Content-Encoding says: {error}; nothing was done"
            );
            Err(Refusal::detailed(Problem::BodyMalformed, detail))
        }
    }
}

/// A decoder whose input must end where the coded data ends: what follows would be sent but not
/// compared.
struct Exactly<D>(D, fn(&D) -> bool);

impl<D: Read> Read for Exactly<D> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        if count == 0 && !buffer.is_empty() && !(self.1)(&self.0) {
            return Err(io::Error::other("something follows the coded data"));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{
        Compression,
        write::{DeflateEncoder, GzEncoder, ZlibEncoder},
    };
    use http::{HeaderValue, Request};
    use http_body_util::Full;

    use super::*;
    use crate::testing::{broken, frames};

    const JSON: &[u8] = br#"{"amount":100}"#;

    fn headers(coding: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if !coding.is_empty() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
        }
        headers
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn print(uri: &str, headers: HeaderMap, body: &[u8]) -> Fingerprint {
        let mut request = Request::post(uri).body(()).unwrap();
        *request.headers_mut() = headers;
        let (parts, ()) = request.into_parts();
        let plain = Plain::of(&parts.headers, body, 1000).unwrap();
        plain.fingerprint(&parts, None, &FingerprintRule::default()).unwrap()
    }

    #[test]
    fn a_coded_body_means_the_same_as_a_plain_one() {
        let plain = print("/a", headers(""), JSON);
        assert_eq!(plain, print("/a", headers("identity"), JSON));
        assert_eq!(plain, print("/a", headers("gzip"), &gzip(JSON)));
        assert_eq!(plain, print("/a", headers("X-GZip"), &gzip(JSON)));
        assert_eq!(plain, print("/a", headers("deflate"), &zlib(JSON)));
        assert_eq!(plain, print("/a", headers("deflate"), &raw(JSON)));
        assert_ne!(plain, print("/b", headers(""), JSON));
        assert_ne!(plain, print("/a?b", headers(""), JSON));
    }

    #[test]
    fn a_coding_that_is_not_known_is_compared_as_bytes() {
        for coding in ["br", "gzip, gzip", "zstd"] {
            let headers = headers(coding);
            let plain = Plain::of(&headers, JSON, 1000).unwrap();
            assert!(plain.opaque && plain.kind == BodyKind::Bytes, "{coding}");
        }
        let mut twice = headers("gzip");
        twice.append(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(Plain::of(&twice, JSON, 1000).unwrap().opaque);
    }

    #[test]
    fn equal_bytes_in_different_codings_are_different_bodies() {
        let mut bytes = HeaderMap::new();
        let coded = |codings: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for coding in codings {
                headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
            }
            print("/a", headers, b"bytes")
        };
        let prints = [
            print("/a", bytes.clone(), b"bytes"),
            coded(&["br"]),
            coded(&["zstd"]),
            coded(&["br, br"]),
        ];
        for (index, one) in prints.iter().enumerate() {
            assert!(prints.iter().skip(index + 1).all(|other| other != one), "{index}");
        }
        assert_eq!(coded(&["br"]), coded(&[" BR "]));
        assert_eq!(coded(&["br, br"]), coded(&["br", "br"]));
        bytes.insert(header::CONTENT_ENCODING, HeaderValue::from_static("br"));
        assert_eq!(print("/a", bytes, b""), print("/a", HeaderMap::new(), b""), "nothing is coded");
    }

    #[cfg(feature = "axum")]
    #[test]
    fn what_was_made_of_a_uri_on_the_way_counts_unless_a_prefix_was_stripped() {
        let print = |sent: Option<&'static str>, now: &str| {
            let (mut parts, ()) = Request::post(now).body(()).unwrap().into_parts();
            if let Some(sent) = sent {
                let sent = axum::extract::OriginalUri(Uri::from_static(sent));
                parts.extensions.insert(sent);
            }
            let plain = Plain::of(&parts.headers, JSON, 1000).unwrap();
            plain.fingerprint(&parts, None, &FingerprintRule::default()).unwrap()
        };
        assert_eq!(print(Some("/eu/a?b"), "/a?b"), print(None, "/eu/a?b"));
        let different = [
            print(None, "/a"),
            print(None, "/a?b"),
            print(Some("/a"), "/v1/a"),
            print(Some("/a"), "/v2/a"),
            print(Some("/v1/a"), "/v2/a"),
            print(Some("/a"), "/a?b"),
            print(Some("/a?b"), "/a"),
            print(Some("/a?"), "/a"),
            print(Some("/a?b"), "/a?c"),
        ];
        for (index, one) in different.iter().enumerate() {
            assert!(different.iter().skip(index + 1).all(|other| other != one), "{index}");
        }
    }

    #[test]
    fn a_damaged_coding_is_refused() {
        let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 3].to_vec();
        let longer = |bytes: Vec<u8>| [bytes, b"more".to_vec()].concat();
        for (coding, body) in [
            ("gzip", JSON.to_vec()),
            ("gzip", cut(gzip(JSON))),
            ("gzip", longer(gzip(JSON))),
            ("deflate", JSON.to_vec()),
            ("deflate", cut(zlib(JSON))),
            ("deflate", longer(zlib(JSON))),
            ("deflate", longer(raw(JSON))),
        ] {
            let refusal = Plain::of(&headers(coding), &body, 1000).unwrap_err();
            assert_eq!(refusal.problem, Problem::BodyMalformed, "{coding} {body:?}");
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let bomb = vec![b'0'; 1 << 20];
        for (coding, body) in [("gzip", gzip(&bomb)), ("deflate", zlib(&bomb))] {
            let refusal = Plain::of(&headers(coding), &body, 10_000).unwrap_err();
            assert_eq!(refusal.problem, Problem::BodyTooLarge);
        }
        assert!(Plain::of(&headers("gzip"), &gzip(&bomb), 1 << 20).is_ok());
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_before_and_while_it_is_read() {
        let mut declared = HeaderMap::new();
        declared.insert(header::CONTENT_LENGTH, HeaderValue::from_static("6"));
        let refusal = read(&declared, frames(&["never read"]), 5).await.unwrap_err();
        assert_eq!(refusal.problem, Problem::BodyTooLarge);
        let none = HeaderMap::new();
        let body = Full::new(Bytes::from_static(b"abcdef"));
        assert_eq!(read(&none, body, 5).await.unwrap_err().problem, Problem::BodyTooLarge);
        let grows = frames(&["abc", "def"]);
        assert_eq!(read(&none, grows, 5).await.unwrap_err().problem, Problem::BodyTooLarge);
        assert_eq!(read(&none, frames(&["abc", "de"]), 5).await.unwrap().data(), "abcde");
    }

    #[tokio::test]
    async fn a_limit_of_another_layer_is_a_limit_too() {
        let limited = http_body_util::Limited::new(frames(&["abc", "def"]), 5);
        let refusal = read(&HeaderMap::new(), limited, 100).await.unwrap_err();
        assert_eq!(refusal.problem, Problem::BodyTooLarge);
    }

    #[tokio::test]
    async fn a_body_that_breaks_is_refused() {
        let refusal = read(&HeaderMap::new(), broken(&["abc"]), 5).await.unwrap_err();
        assert_eq!(refusal.problem, Problem::BodyMalformed);
        assert!(refusal.detail.unwrap().contains("broke off"));
    }
}
