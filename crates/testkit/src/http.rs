//! The response type of all suites: read to its end, with the checks that they share.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use serde_json::Value;

/// Headers that every replay has if the first response had them.
const REPLAYED: [&str; 4] = ["content-type", "content-length", "location", "etag"];

/// How long the record of a response is kept.
const EXPIRES: &str = "idempotency-expires";

/// Headers that a replay has of its own.
const NEW_IN_REPLAYS: [&str; 4] = ["connection", "date", EXPIRES, "idempotent-replayed"];

/// A response, read to its end. Two are equal even if one says that its record expires a second
/// earlier: that is computed for each response.
#[derive(Clone, Debug)]
pub struct TestResponse {
    /// The status code.
    pub status: StatusCode,
    /// The version of HTTP that the response came in.
    pub version: Version,
    /// The headers. Iterating yields them in the order of their arrival, duplicates included.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
}

impl TestResponse {
    /// Reads the body of a response to its end.
    ///
    /// # Panics
    ///
    /// If the body breaks off.
    pub async fn read<B>(response: Response<B>) -> Self
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        Self::try_read(response).await.expect("a whole body")
    }

    /// Reads the body of a response to its end.
    ///
    /// # Errors
    ///
    /// The error of the body, if it breaks off.
    pub async fn try_read<B>(response: Response<B>) -> Result<Self, B::Error>
    where
        B: http_body::Body<Data = Bytes>,
    {
        let (head, body) = response.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned();
        let (status, version, headers) = (head.status, head.version, head.headers);
        Ok(Self { status, version, headers, body: body.to_bytes(), trailers })
    }

    /// Parses a response of HTTP/1.1 whose body has a declared length or none. `None` if a part of
    /// it is missing.
    ///
    /// # Panics
    ///
    /// If the bytes are not such a response.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(bytes.get(..end)?);
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1).expect("a status line");
        let status = status.parse().expect("a status code");
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) = line.split_once(':').expect("a header line");
            let name: HeaderName = name.parse().expect("a header name");
            headers.append(name, HeaderValue::from_str(value.trim()).expect("a header value"));
        }
        assert!(!headers.contains_key("transfer-encoding"), "the length is not declared: {head}");
        let length = headers.get("content-length").map(|length| length.to_str().expect("text"));
        let length = length.map_or(0, |length| length.parse().expect("a length"));
        let body = bytes.get(end + 4..)?.get(..length)?;
        let (version, body) = (Version::HTTP_11, Bytes::copy_from_slice(body));
        Some(Self { status, version, headers, body, trailers: None })
    }

    /// The first value of a header.
    ///
    /// # Panics
    ///
    /// If the value is not text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    /// When the record of the response expires, in seconds since 1970, if the response says so.
    ///
    /// # Panics
    ///
    /// If the value is not a structured-field Date.
    #[must_use]
    pub fn expires(&self) -> Option<u64> {
        let date = self.header(EXPIRES)?.strip_prefix('@').expect("a date");
        Some(date.parse().expect("seconds"))
    }

    /// The body as text.
    ///
    /// # Panics
    ///
    /// If the body is not text.
    #[must_use]
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// If the body is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// Whether the response says that it is a replay.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The status, and the slug of the problem if the response is one.
    #[must_use]
    pub fn outcome(&self) -> (u16, Option<&str>) {
        (self.status.as_u16(), self.header("idempotency-problem"))
    }

    /// The slug of a problem, after checks of the document and of its retry headers.
    ///
    /// # Panics
    ///
    /// If the response is not a problem, or contradicts itself.
    #[track_caller]
    pub fn slug(&self) -> String {
        let slug = self.document_slug();
        let retry = self.header("x-should-retry");
        assert!(matches!(retry, Some("true" | "false")), "{self:?}");
        assert_eq!(self.header("stripe-should-retry"), retry);
        assert_eq!(self.header("retry-after").is_some(), retry == Some("true"), "{self:?}");
        slug
    }

    /// The slug of a problem, after checks of the document.
    #[track_caller]
    fn document_slug(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let document = self.json();
        assert_eq!(document["status"], self.status.as_u16());
        assert!(document["title"].is_string());
        assert!(document["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
        assert_eq!(document["error"]["message"], document["detail"]);
        let slug =
            document["type"].as_str().and_then(|kind| kind.strip_prefix("urn:semel:problem:"));
        let slug = slug.expect("a type of Semel");
        assert_eq!(document["error"]["code"], slug.replace('-', "_"));
        slug.to_owned()
    }

    /// Asserts that the response is this problem.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    pub fn assert_problem(&self, status: u16, slug: &str) {
        assert_eq!((self.status.as_u16(), &*self.slug()), (status, slug), "{self:?}");
    }

    /// Asserts that the response of the operators' API is this problem. The API has no retry
    /// headers.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    pub fn assert_api_problem(&self, status: u16, slug: &str) {
        assert_eq!((self.status.as_u16(), &*self.document_slug()), (status, slug), "{self:?}");
    }

    /// Asserts that the response is a replay of what `first` is: the same status, body and
    /// trailers,
    /// the headers that every replay has, and no header that `first` has not, in the same order.
    ///
    /// # Panics
    ///
    /// If it is not.
    #[track_caller]
    pub fn assert_replay_of(&self, first: &Self) {
        assert!(self.is_replayed(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        assert_eq!(self.trailers, first.trailers);
        for name in REPLAYED {
            assert_eq!(self.header(name), first.header(name), "{name}");
        }
        let mut others = first.headers.iter();
        for line in self.headers.iter().filter(|(name, _)| !NEW_IN_REPLAYS.contains(&name.as_str()))
        {
            assert!(
                others.any(|other| other == line),
                "{line:?} in {self:?}, but not in {first:?}"
            );
        }
    }
}

impl PartialEq for TestResponse {
    fn eq(&self, other: &Self) -> bool {
        let lines = |response: &Self| {
            let mut headers = response.headers.clone();
            (headers.remove(EXPIRES).is_some(), headers)
        };
        let rest = |response: &Self| (response.status, response.version, response.body.clone());
        rest(self) == rest(other) && lines(self) == lines(other) && self.trailers == other.trailers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: &[u8] =
        b"HTTP/1.1 201 Created\r\nB: 1\r\nContent-Length: 2\r\nA: 2\r\nB: 3\r\n\r\nok and more";

    #[test]
    fn a_parsed_response_has_all_headers_and_the_declared_length() {
        let response = TestResponse::parse(RESPONSE).unwrap();
        assert_eq!((response.status.as_u16(), response.text()), (201, "ok"));
        let values: Vec<_> = response.headers.get_all("b").iter().collect();
        assert_eq!(values, ["1", "3"]);
    }

    #[test]
    fn a_truncated_response_is_none() {
        let whole = RESPONSE.len() - " and more".len();
        for length in 0..whole {
            assert_eq!(TestResponse::parse(&RESPONSE[..length]), None, "{length}");
        }
    }

    #[test]
    #[should_panic(expected = "but not in")]
    fn headers_in_another_order_are_not_a_replay() {
        let first = TestResponse::parse(b"HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n\r\n").unwrap();
        let replay = b"HTTP/1.1 200 OK\r\nB: 2\r\nA: 1\r\nIdempotent-Replayed: true\r\n\r\n";
        TestResponse::parse(replay).unwrap().assert_replay_of(&first);
    }
}
