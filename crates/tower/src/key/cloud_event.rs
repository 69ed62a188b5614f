//! The key of a CloudEvent (version 1.0, HTTP binding): its source and its id.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use semel::{
    core::{
        Key, Problem,
        canonical::{self, Pointer, Value},
    },
    keys,
};

use crate::refusal::Refusal;

pub(super) const SOURCE: HeaderName = HeaderName::from_static("ce-source");
pub(super) const ID: HeaderName = HeaderName::from_static("ce-id");

/// How an event is sent.
#[derive(Debug)]
pub(super) enum Mode {
    /// Its attributes are headers.
    Binary(Key),
    /// All of it is the body.
    Structured,
}

/// How the event of a request is sent, `None` if there is none.
pub(super) fn mode(headers: &HeaderMap) -> Result<Option<Mode>, Refusal> {
    match (only(headers, &SOURCE)?, only(headers, &ID)?) {
        (Some(source), Some(id)) => Ok(Some(Mode::Binary(key(source, id)?))),
        (None, None) => structured(headers),
        (Some(_), None) | (None, Some(_)) => {
            Err(malformed("a CloudEvent has both headers, ce-source and ce-id; send both"))
        }
    }
}

/// The key of an event that is the body.
pub(super) fn in_body(body: &[u8]) -> Result<Key, Refusal> {
    let text = |pointer: &str| -> Result<String, Refusal> {
        let found = Pointer::parse(pointer).ok().map(|pointer| canonical::find(body, &pointer));
        match found.transpose() {
            Ok(Some(Some(Value::Text(text)))) => Ok(text),
            Ok(_) => Err(malformed("a CloudEvent has a source and an id; send both, as strings")),
            Err(error) => Err(Refusal::detailed(Problem::BodyMalformed, error.to_string())),
        }
    };
    key(text("/source")?.as_bytes(), text("/id")?.as_bytes())
}

fn key(source: &[u8], id: &[u8]) -> Result<Key, Refusal> {
    if source.is_empty() || id.is_empty() {
        return Err(malformed("the source and the id of a CloudEvent must not be empty"));
    }
    Ok(keys::from_parts("cloudevents", [source, id]))
}

/// The type of the body says whether it is an event. Several in one have no one key.
fn structured(headers: &HeaderMap) -> Result<Option<Mode>, Refusal> {
    let value = headers.get(header::CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    let essence = value.split(|byte| *byte == b';').next().unwrap_or_default();
    match essence.trim_ascii().to_ascii_lowercase().as_slice() {
        b"application/cloudevents+json" => Ok(Some(Mode::Structured)),
        other if other.starts_with(b"application/cloudevents-batch") => {
            Err(malformed("a batch of CloudEvents has no one key; send events one by one"))
        }
        _ => Ok(None),
    }
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(malformed("ce-source and ce-id are sent once each")),
        (line, None) => Ok(line.map(HeaderValue::as_bytes)),
    }
}

fn malformed(detail: &'static str) -> Refusal {
    Refusal::detailed(Problem::KeyMalformed, detail)
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
        let Some(Mode::Binary(key)) = mode(&binary).unwrap() else { panic!() };
        assert_eq!(in_body(br#"{"id":"e-1","source":"/orders","data":7}"#).unwrap(), key);
        // printf '11:cloudevents,7:/orders,3:e-1,' | sha256sum
        let hash = "6a609b8a470b8daca4528be3ef610c306432109e6a0637f0b7009a85576c453f";
        assert_eq!(key.as_str(), hash);
    }

    #[test]
    fn where_the_source_ends_counts() {
        let of = |body: &str| in_body(body.as_bytes()).unwrap();
        let one = of(r#"{"source":"/a","id":"1"}"#);
        assert_ne!(one, of(r#"{"source":"/b","id":"1"}"#));
        assert_ne!(of(r#"{"source":"/a","id":"bc"}"#), of(r#"{"source":"/ab","id":"c"}"#));
    }

    #[test]
    fn an_event_is_told_from_other_requests_by_its_headers() {
        let typed = |value| mode(&headers(&[("content-type", value)]));
        let structured = typed("Application/CloudEvents+JSON; charset=utf-8").unwrap();
        assert!(matches!(structured, Some(Mode::Structured)));
        assert!(typed("application/json").unwrap().is_none());
        assert!(mode(&headers(&[])).unwrap().is_none());
        let batch = typed("application/cloudevents-batch+json").unwrap_err();
        assert_eq!(batch.problem, Problem::KeyMalformed);
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
