//! Reads a guarded request: its body up to the limit, decoded, and its fingerprint.

use std::{borrow::Cow, error::Error, pin::pin};

use bytes::Bytes;
use http::{HeaderMap, Uri, header, request::Parts};
use http_body::Body;
use http_body_util::LengthLimitError;
use semel::core::{BodyKind, BodyRule, Fingerprint, FingerprintInput, FingerprintRule, Problem};

use crate::{
    BoxError,
    buffered_body::BufferedBody,
    collect::{BodyCollector, CollectResult},
    content_coding::{ContentCoding, too_large},
    memory::Reservation,
    refusal::RequestRefusal,
};

/// Reads a body, at most `max` bytes of it and no more than the memory budget allows after `evict`
/// has ended other bodies.
pub(crate) async fn read<B>(
    headers: &HeaderMap,
    body: B,
    max: usize,
    memory: Option<Reservation>,
    evict: &(dyn Fn() -> bool + Sync),
) -> Result<BufferedBody, RequestRefusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if is_declared_over(headers, &body, max) {
        return Err(too_large(max));
    }
    let mut collector = BodyCollector::with_reservation(memory);
    let mut body = pin!(body);
    loop {
        match collector.fill(body.as_mut(), max).await {
            Ok(CollectResult::Complete) => return Ok(collector.finish_held()),
            Ok(CollectResult::TooLarge) => return Err(too_large(max)),
            Ok(CollectResult::OutOfMemory) => {}
            Err(error) => return Err(broke_off(&*error.into())),
        }
        // Rare, and large.
        if !Box::pin(collector.make_room(evict)).await {
            return Err(out_of_memory());
        }
    }
}

/// Refuses a request whose body ended before its end.
fn broke_off(error: &(dyn Error + Send + Sync + 'static)) -> RequestRefusal {
    if is_over_a_limit(error) {
        return Problem::BodyTooLarge.into();
    }
    let detail = format!("the body broke off while it was read: {error}; nothing was done");
    RequestRefusal::detailed(Problem::BodyMalformed, detail)
}

/// Whether a body declares that it is larger than `max`.
pub(crate) fn is_declared_over<B: Body>(headers: &HeaderMap, body: &B, max: usize) -> bool {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|text| text.parse().ok()).unwrap_or(0_u64);
    declared.max(body.size_hint().lower()) > u64::try_from(max).unwrap_or(u64::MAX)
}

/// Whether a body failed only because another layer limits it.
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

/// Refuses a request while there is no memory for it.
pub(crate) fn out_of_memory() -> RequestRefusal {
    let detail = "the bodies and answers of other requests from this address take all the memory \
                  that it may use; nothing was done";
    RequestRefusal::detailed(Problem::TooManyInFlight, detail)
}

/// A copy of the part of a head that [`DecodedBody::fingerprint`] needs.
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

/// A body without its content coding.
#[derive(Debug)]
pub(crate) struct DecodedBody<'a> {
    pub(crate) kind: BodyKind,
    pub(crate) body: Cow<'a, [u8]>,
    /// Whether the content coding cannot be decoded here, so that only bytes can be compared.
    pub(crate) opaque: bool,
}

impl<'a> DecodedBody<'a> {
    /// Decodes the content coding, up to `max` bytes.
    pub(crate) fn of(
        headers: &HeaderMap,
        body: &'a [u8],
        max: usize,
    ) -> Result<Self, RequestRefusal> {
        let coding = ContentCoding::of(headers);
        let decoded = coding.decode(body, max)?;
        let body = decoded.map_or(Cow::Borrowed(body), Cow::Owned);
        let opaque = coding == ContentCoding::Other && !body.is_empty();
        let kind = if opaque {
            BodyKind::Bytes
        } else {
            let content_type = headers.get(header::CONTENT_TYPE).map(|value| value.as_bytes());
            BodyKind::of(content_type, body.is_empty())
        };
        Ok(Self { kind, body, opaque })
    }

    /// The method and, after a space, which no method can contain, the coding that was not decoded:
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

    /// The fingerprint of the request.
    pub(crate) fn fingerprint(
        &self,
        parts: &Parts,
        host: Option<&str>,
        rule: &FingerprintRule,
    ) -> Result<Fingerprint, RequestRefusal> {
        let (path, query) = target(parts);
        let meaning = FingerprintInput {
            method: &self.method(parts, rule),
            host,
            path: &path,
            query: query.as_deref(),
            headers: &listed(&parts.headers, rule),
            kind: self.kind.clone(),
            body: &self.body,
        };
        Fingerprint::of(&meaning, rule)
            .map_err(|error| RequestRefusal::detailed(Problem::BodyMalformed, error.to_string()))
    }
}

/// The values of the headers in the fingerprint.
fn listed<'a>(headers: &'a HeaderMap, rule: &'a FingerprintRule) -> Vec<(&'a str, &'a [u8])> {
    let lines = rule.headers.iter().flat_map(|name| {
        let lines = headers.get_all(name.as_str()).iter();
        lines.map(move |line| (name.as_str(), line.as_bytes()))
    });
    lines.collect()
}

/// Path and query as the client sent them: a nested router strips its prefix, and two routes that
/// are nested under different prefixes must not have the same fingerprint. Other rewrites on the
/// way count too. A space, which neither can contain, joins the two.
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

    async fn read<B>(
        headers: &HeaderMap,
        body: B,
        max: usize,
    ) -> Result<BufferedBody, RequestRefusal>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        super::read(headers, body, max, None, &|| false).await
    }

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
        let decoded = DecodedBody::of(&parts.headers, body, 1000).unwrap();
        decoded.fingerprint(&parts, None, &FingerprintRule::default()).unwrap()
    }

    #[test]
    fn a_coded_body_means_the_same_as_a_plain_one() {
        let decoded = print("/a", headers(""), JSON);
        assert_eq!(decoded, print("/a", headers("identity"), JSON));
        assert_eq!(decoded, print("/a", headers("gzip"), &gzip(JSON)));
        assert_eq!(decoded, print("/a", headers("X-GZip"), &gzip(JSON)));
        assert_eq!(decoded, print("/a", headers("deflate"), &zlib(JSON)));
        assert_eq!(decoded, print("/a", headers("deflate"), &raw(JSON)));
        assert_ne!(decoded, print("/b", headers(""), JSON));
        assert_ne!(decoded, print("/a?b", headers(""), JSON));
    }

    #[test]
    fn a_coding_that_is_not_known_is_compared_as_bytes() {
        for coding in ["br", "gzip, gzip", "zstd"] {
            let headers = headers(coding);
            let decoded = DecodedBody::of(&headers, JSON, 1000).unwrap();
            assert!(decoded.opaque && decoded.kind == BodyKind::Bytes, "{coding}");
        }
        let mut twice = headers("gzip");
        twice.append(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert!(DecodedBody::of(&twice, JSON, 1000).unwrap().opaque);
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
    fn a_rewritten_uri_counts_unless_a_prefix_was_stripped() {
        let print = |sent: Option<&'static str>, now: &str| {
            let (mut parts, ()) = Request::post(now).body(()).unwrap().into_parts();
            if let Some(sent) = sent {
                let sent = axum::extract::OriginalUri(Uri::from_static(sent));
                parts.extensions.insert(sent);
            }
            let decoded = DecodedBody::of(&parts.headers, JSON, 1000).unwrap();
            decoded.fingerprint(&parts, None, &FingerprintRule::default()).unwrap()
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
            let refusal = DecodedBody::of(&headers(coding), &body, 1000).unwrap_err();
            assert_eq!(refusal.problem, Problem::BodyMalformed, "{coding} {body:?}");
        }
    }

    #[test]
    fn a_bomb_is_stopped_at_the_limit() {
        let bomb = vec![b'0'; 1 << 20];
        for (coding, body) in [("gzip", gzip(&bomb)), ("deflate", zlib(&bomb))] {
            let refusal = DecodedBody::of(&headers(coding), &body, 10_000).unwrap_err();
            assert_eq!(refusal.problem, Problem::BodyTooLarge);
        }
        // Within the limit of the route it still costs too much time for its length.
        let refusal = DecodedBody::of(&headers("gzip"), &gzip(&bomb), 1 << 20).unwrap_err();
        assert_eq!(refusal.problem, Problem::BodyTooLarge);
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
