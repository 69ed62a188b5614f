//! The key of a CloudEvent (version 1.0, HTTP binding): its source and its id.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use semel::{
    core::{
        Key, Problem,
        canonical::{self, Pointer, Value},
    },
    keys,
};

use crate::refusal::RequestRefusal;

pub(super) const SOURCE: HeaderName = HeaderName::from_static("ce-source");
pub(super) const ID: HeaderName = HeaderName::from_static("ce-id");

/// The content mode of an event.
#[derive(Debug)]
pub(super) enum EventMode {
    /// Its attributes are headers.
    Binary(Key),
    /// The whole event is the body.
    Structured,
}

/// The content mode of a request's event, `None` if there is none. The type of the body decides:
/// the headers of a structured event are ignored, or a client that adds some could rename it.
pub(super) fn mode(headers: &HeaderMap) -> Result<Option<EventMode>, RequestRefusal> {
    if is_structured(headers)? {
        return Ok(Some(EventMode::Structured));
    }
    match (only(headers, &SOURCE)?, only(headers, &ID)?) {
        (Some(source), Some(id)) => {
            Ok(Some(EventMode::Binary(key(&decoded(source)?, &decoded(id)?)?)))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            Err(malformed("a CloudEvent has both headers, ce-source and ce-id; send both"))
        }
    }
}

/// The key of a structured event.
pub(super) fn in_body(body: &[u8]) -> Result<Key, RequestRefusal> {
    let text = |pointer: &str| -> Result<String, RequestRefusal> {
        let found = Pointer::parse(pointer).ok().map(|pointer| canonical::find(body, &pointer));
        match found.transpose() {
            Ok(Some(Some(Value::Text(text)))) => Ok(text),
            Ok(_) => Err(malformed("a CloudEvent has a source and an id; send both, as strings")),
            Err(error) => Err(RequestRefusal::detailed(Problem::BodyMalformed, error.to_string())),
        }
    };
    key(text("/source")?.as_bytes(), text("/id")?.as_bytes())
}

/// Whether the headers may be those of an event.
pub(super) fn may_be_in(headers: &HeaderMap) -> bool {
    const TYPE: &[u8] = b"application/cloudevents";

    let is_event = |value: &HeaderValue| {
        let kind = value.as_bytes().trim_ascii_start().get(..TYPE.len());
        kind.is_some_and(|kind| kind.eq_ignore_ascii_case(TYPE))
    };
    headers.contains_key(ID)
        || headers.contains_key(SOURCE)
        || headers.get_all(header::CONTENT_TYPE).iter().any(is_event)
}

fn key(source: &[u8], id: &[u8]) -> Result<Key, RequestRefusal> {
    if source.is_empty() || id.is_empty() {
        return Err(malformed("the source and the id of a CloudEvent must not be empty"));
    }
    Ok(keys::from_parts("cloudevents", [source, id]))
}

/// Whether the body is an event. A batch has no single key, and other formats cannot be read here.
fn is_structured(headers: &HeaderMap) -> Result<bool, RequestRefusal> {
    for value in headers.get_all(header::CONTENT_TYPE) {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        match essence.trim_ascii().to_ascii_lowercase().as_slice() {
            b"application/cloudevents+json" => return Ok(true),
            other if other.starts_with(b"application/cloudevents-batch") => {
                return Err(malformed(
                    "a batch of CloudEvents has no one key; send events one by one",
                ));
            }
            other if other.starts_with(b"application/cloudevents") => {
                return Err(malformed("a CloudEvent that is the body must be JSON"));
            }
            _ => {}
        }
    }
    Ok(false)
}

/// An attribute in a header of the HTTP binding: it may be quoted, and is percent-encoded.
fn decoded(value: &[u8]) -> Result<Vec<u8>, RequestRefusal> {
    let bad = || malformed("ce-source and ce-id are percent-encoded UTF-8; mend the escapes");
    let value = unquoted(value).ok_or_else(bad)?;
    let mut bytes = value.iter().copied();
    let mut text = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let escaped = digit().zip(digit()).map(|(high, low)| high * 16 + low);
                escaped.and_then(|byte| u8::try_from(byte).ok()).ok_or_else(bad)?
            }
            byte => byte,
        });
    }
    if str::from_utf8(&text).is_err() { Err(bad()) } else { Ok(text) }
}

/// A value without its quotes and their backslash escapes.
fn unquoted(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(quoted) = value.strip_prefix(b"\"") else { return Some(value.into()) };
    let mut bytes = quoted.strip_suffix(b"\"")?.iter().copied();
    let mut text = Vec::with_capacity(quoted.len());
    while let Some(byte) = bytes.next() {
        text.push(match byte {
            b'\\' => bytes.next()?,
            b'"' => return None,
            byte => byte,
        });
    }
    Some(text.into())
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, RequestRefusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(malformed("ce-source and ce-id are sent once each")),
        (line, None) => Ok(line.map(HeaderValue::as_bytes)),
    }
}

fn malformed(detail: &'static str) -> RequestRefusal {
    RequestRefusal::detailed(Problem::KeyMalformed, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn both_ways_to_send_an_event_give_the_same_key() {
        let binary = headers(&[("ce-source", "/orders"), ("ce-id", "e-1")]);
        let Some(EventMode::Binary(key)) = mode(&binary).unwrap() else { panic!() };
        assert_eq!(in_body(br#"{"id":"e-1","source":"/orders","data":7}"#).unwrap(), key);
        // printf '11:cloudevents,7:/orders,3:e-1,' | sha256sum
        let hash = "6a609b8a470b8daca4528be3ef610c306432109e6a0637f0b7009a85576c453f";
        assert_eq!(key.as_str(), hash);
    }

    #[test]
    fn the_source_and_the_id_of_an_event_are_delimited() {
        let of = |body: &str| in_body(body.as_bytes()).unwrap();
        let one = of(r#"{"source":"/a","id":"1"}"#);
        assert_ne!(one, of(r#"{"source":"/b","id":"1"}"#));
        assert_ne!(of(r#"{"source":"/a","id":"bc"}"#), of(r#"{"source":"/ab","id":"c"}"#));
    }

    #[test]
    fn an_event_is_recognised_by_its_headers() {
        let typed = |value| mode(&headers(&[("content-type", value)]));
        let structured = typed("Application/CloudEvents+JSON; charset=utf-8").unwrap();
        assert!(matches!(structured, Some(EventMode::Structured)));
        assert!(typed("application/json").unwrap().is_none());
        assert!(mode(&headers(&[])).unwrap().is_none());
        let batch = typed("application/cloudevents-batch+json").unwrap_err();
        assert_eq!(batch.problem, Problem::KeyMalformed);
        let avro = typed("application/cloudevents+avro").unwrap_err();
        assert_eq!(avro.problem, Problem::KeyMalformed);
    }

    #[test]
    fn headers_cannot_rename_an_event_that_is_the_body() {
        let of = |kind| {
            mode(&headers(&[("content-type", kind), ("ce-source", "/a"), ("ce-id", "other")]))
        };
        let structured = of("application/cloudevents+json").unwrap();
        assert!(matches!(structured, Some(EventMode::Structured)));
        assert!(of("application/cloudevents-batch+json").is_err());
        assert!(matches!(of("application/json").unwrap(), Some(EventMode::Binary(_))));
    }

    #[test]
    fn headers_are_decoded_before_they_are_compared() {
        let binary = |source, id| {
            let mode = mode(&headers(&[("ce-source", source), ("ce-id", id)]))?;
            let Some(EventMode::Binary(key)) = mode else { panic!() };
            Ok::<Key, RequestRefusal>(key)
        };
        let euro = in_body(r#"{"source":"/€ 100%","id":"a\"b"}"#.as_bytes()).unwrap();
        assert_eq!(binary("/%E2%82%AC%20100%25", "a%22b").unwrap(), euro);
        assert_eq!(binary("/%e2%82%ac 100%25", "a\"b").unwrap(), euro);
        assert_eq!(binary("\"/%E2%82%AC 100%25\"", r#""a\"b""#).unwrap(), euro);
        for bad in ["%", "%2", "%zz", "%+1", "%E2%82", "\"", "\"a", r#""a\""#, r#""a"b""#] {
            let refusal = binary("/a", bad).unwrap_err();
            assert_eq!(refusal.problem, Problem::KeyMalformed, "{bad}");
        }
    }

    #[test]
    fn half_an_event_is_malformed() {
        for lines in [
            &[("ce-id", "1")][..],
            &[("ce-source", "/a")],
            &[("ce-source", "/a"), ("ce-id", "")],
            &[("ce-source", "/a"), ("ce-id", "1"), ("ce-id", "1")],
        ] {
            let refusal = mode(&headers(lines)).unwrap_err();
            assert_eq!(refusal.problem, Problem::KeyMalformed, "{lines:?}");
        }
        for body in [r#"{"id":"1"}"#, r#"{"source":"/a","id":1}"#, r#"{"source":"","id":"1"}"#] {
            let refusal = in_body(body.as_bytes()).unwrap_err();
            assert_eq!(refusal.problem, Problem::KeyMalformed, "{body}");
        }
        let twice = in_body(br#"{"source":"/a","id":"1","id":"2"}"#).unwrap_err();
        assert_eq!(twice.problem, Problem::BodyMalformed);
    }
}
