//! The description of a guarded request for operators: a short text, and captured values.

use http::{HeaderMap, HeaderName, request::Parts};
use semel::core::{
    BodyKind,
    canonical::{self, Pointer},
};

use crate::request::{self, DecodedBody};

/// The maximum length of [`Subject::about`], in bytes.
pub const ABOUT_BYTES_MAX: usize = 200;

/// The maximum total length of the names and values of [`Subject::captured`], in bytes.
pub const CAPTURED_BYTES_MAX: usize = 256;

/// The description of a guarded request: an extension of the request that its service gets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subject {
    /// Method, host and path, without the query: `POST shop-a.example/v1/charges`; or what
    /// [`IdempotencyLayer::about`](crate::IdempotencyLayer::about) says instead. At most
    /// [`ABOUT_BYTES_MAX`] bytes; a longer one ends in `…`.
    pub about: String,
    /// The values that [`IdempotencyLayer::capture`](crate::IdempotencyLayer::capture) names, in
    /// that order. One that the request does not have, or that does not fit in
    /// [`CAPTURED_BYTES_MAX`] bytes with those before it, is left out: it is never truncated.
    pub captured: Vec<(String, String)>,
}

/// Where a request contains a captured value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureSource {
    /// A place in a JSON body: a string, a number, `true` or `false`.
    Json(Pointer),
    /// A header with one line.
    Header(HeaderName),
}

/// How the requests of a layer are described.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubjectRule {
    /// Instead of method, host and path.
    pub(crate) about: Option<Box<str>>,
    pub(crate) captures: Vec<(Box<str>, CaptureSource)>,
}

impl SubjectRule {
    pub(crate) fn of(&self, parts: &Parts, host: Option<&str>, plain: &DecodedBody<'_>) -> Subject {
        let about = match &self.about {
            Some(about) => bounded(about.to_string()),
            None => {
                let (path, _) = request::target(parts);
                // No formatting: every guarded request is described.
                bounded([parts.method.as_str(), " ", host.unwrap_or_default(), &*path].concat())
            }
        };
        let captured =
            if self.captures.is_empty() { Vec::new() } else { self.capture(&parts.headers, plain) };
        Subject { about, captured }
    }

    fn capture(&self, headers: &HeaderMap, plain: &DecodedBody<'_>) -> Vec<(String, String)> {
        let pointers = self.captures.iter().filter_map(|(_, source)| match source {
            CaptureSource::Json(pointer) => Some(pointer),
            CaptureSource::Header(_) => None,
        });
        let read = !plain.opaque && plain.kind != BodyKind::Empty;
        let found = read.then(|| canonical::find_all(&plain.body, pointers).ok()).flatten();
        let mut members = found.unwrap_or_default().into_iter();
        let mut left = CAPTURED_BYTES_MAX;
        let mut captured = Vec::new();
        for (name, source) in &self.captures {
            let value = match source {
                CaptureSource::Json(_) => {
                    members.next().flatten().and_then(|value| value.text().map(str::to_owned))
                }
                CaptureSource::Header(name) => in_header(headers, name),
            };
            let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
            if let Some(rest) = left.checked_sub(name.len().saturating_add(value.len())) {
                left = rest;
                captured.push((name.to_string(), value));
            }
        }
        captured
    }
}

fn in_header(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let mut lines = headers.get_all(name).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    str::from_utf8(line.as_bytes().trim_ascii()).ok().map(str::to_owned)
}

/// A text of at most [`ABOUT_BYTES_MAX`] bytes.
fn bounded(mut text: String) -> String {
    const MARK: char = '…';

    if text.len() > ABOUT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(ABOUT_BYTES_MAX.saturating_sub(MARK.len_utf8())));
        text.push(MARK);
    }
    text
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn subject(rule: &SubjectRule, uri: &str, lines: &[(&str, &str)], body: &str) -> Subject {
        let mut request = Request::post(uri).header("content-type", "application/json");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let plain = DecodedBody::of(&parts.headers, body.as_bytes(), 100_000).unwrap();
        rule.of(&parts, crate::host::of(&parts, false).as_deref(), &plain)
    }

    fn capture(captures: &[(&str, CaptureSource)]) -> SubjectRule {
        let captures = captures.iter().map(|(name, source)| ((*name).into(), source.clone()));
        SubjectRule { about: None, captures: captures.collect() }
    }

    fn json(text: &str) -> CaptureSource {
        CaptureSource::Json(Pointer::parse(text).unwrap())
    }

    #[test]
    fn a_request_is_about_its_method_host_and_path() {
        let rule = SubjectRule::default();
        let about = |uri: &str, lines: &[(&str, &str)]| subject(&rule, uri, lines, "{}").about;
        assert_eq!(about("/charges?card=1", &[("host", "A.example:80")]), "POST a.example/charges");
        assert_eq!(about("/charges", &[("host", "10.0.0.1")]), "POST /charges");
        let long = format!("/{}", "é".repeat(300).replace('é', "%C3%A9"));
        let text = about(&long, &[]);
        assert!(text.len() <= 200 && text.ends_with('…'), "{text}");
        let fixed = SubjectRule { about: Some("POST /v1/**".into()), ..SubjectRule::default() };
        assert_eq!(subject(&fixed, "/v1/x", &[], "{}").about, "POST /v1/**");
        assert!(bounded("é".repeat(101)).len() <= 200);
    }

    #[test]
    fn values_are_captured_from_the_body_and_from_headers() {
        let header = CaptureSource::Header(HeaderName::from_static("x-shop"));
        let rule = capture(&[
            ("order", json("/order_id")),
            ("shop", header),
            ("amount", json("/amount")),
            ("nothing", json("/nothing")),
        ]);
        let found = |lines, body| subject(&rule, "/", lines, body).captured;
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let body = r#"{"order_id":"o-17","amount":49.90,"nothing":null}"#;
        assert_eq!(
            found(&[("x-shop", " s1 ")], body),
            [pair("order", "o-17"), pair("shop", "s1"), pair("amount", "49.9")]
        );
        assert_eq!(found(&[("x-shop", "a"), ("x-shop", "b")], "{}"), []);
        assert_eq!(found(&[], r#"{"order_id":{},"amount":""}"#), []);
        assert_eq!(found(&[("x-shop", "a")], ""), [pair("shop", "a")]);
        assert_eq!(found(&[("x-shop", "a")], "no JSON"), [pair("shop", "a")]);
    }

    #[test]
    fn values_that_do_not_fit_are_left_out_and_never_truncated() {
        let rule = capture(&[("a", json("/a")), ("b", json("/b")), ("c", json("/c"))]);
        let (long, rest) = ("x".repeat(300), "y".repeat(254));
        let body = format!(r#"{{"a":"{long}","b":"{rest}","c":"z"}}"#);
        let captured = subject(&rule, "/", &[], &body).captured;
        assert_eq!(captured, [("b".to_owned(), rest)], "255 of 256 bytes are taken");
    }
}
