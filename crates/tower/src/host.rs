//! The host of a request.

use http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts};
use semel::core::fingerprint::host_name;

const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The host name of a request: the authority of its target (`:authority` in HTTP/2), else its
/// `Host`. With `forwarded`, the host that a proxy in front received: `X-Forwarded-Host`, else
/// `Forwarded`. `None` for an IP address or without a host.
pub(crate) fn of(parts: &Parts, forwarded: bool) -> Option<String> {
    if forwarded && let Some(host) = forwarded_host(&parts.headers) {
        return host_name(&host);
    }
    if let Some(authority) = parts.uri.authority() {
        return host_name(authority.as_str());
    }
    host_name(&text(parts.headers.get(header::HOST)?.as_bytes()))
}

/// The host that the first proxy received. A proxy appends to the list.
fn forwarded_host(headers: &HeaderMap) -> Option<String> {
    let first = |name: &HeaderName| headers.get(name).map(HeaderValue::as_bytes);
    let listed = first(&X_FORWARDED_HOST).map(|line| {
        let host = line.split(|byte| *byte == b',').next().unwrap_or_default();
        text(host.trim_ascii())
    });
    let listed = listed.filter(|host| !host.is_empty());
    listed.or_else(|| in_forwarded(&text(first(&header::FORWARDED)?)))
}

/// The `host` of the first element of a `Forwarded` header (RFC 7239).
fn in_forwarded(line: &str) -> Option<String> {
    let element = split_unquoted(line, ',').next()?;
    let mut pairs = split_unquoted(element, ';').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("host"))?;
    let value = value.trim();
    let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    Some(unquoted.unwrap_or(value).replace('\\', ""))
}

/// The parts of a text between separators outside quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |character: char| {
        let separates = character == separator && !quoted;
        quoted ^= character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        separates
    })
}

/// A value as text, without loss: bytes that are not ASCII stay distinct.
fn text(value: &[u8]) -> String {
    match str::from_utf8(value) {
        Ok(text) => text.to_owned(),
        Err(_) => value.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn host(uri: &str, lines: &[(&str, &str)], forwarded: bool) -> Option<String> {
        let mut request = Request::post(uri);
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        of(&request.body(()).unwrap().into_parts().0, forwarded)
    }

    #[test]
    fn the_authority_of_the_target_counts_before_the_header() {
        let line = [("host", "b.example")];
        assert_eq!(host("/", &line, false).unwrap(), "b.example");
        assert_eq!(host("http://A.example:8080/", &line, false).unwrap(), "a.example");
        assert_eq!(host("http://10.0.0.1/", &line, false), None, "an address is no host");
        assert_eq!(host("/", &[], false), None);
        assert_eq!(host("/", &[("host", "")], false), None);
    }

    #[test]
    fn forwarded_headers_count_only_from_a_trusted_proxy() {
        for (lines, expected) in [
            (&[("x-forwarded-host", "a.example")][..], Some("a.example")),
            (&[("x-forwarded-host", "A.example:443, inner.example")], Some("a.example")),
            (&[("x-forwarded-host", "10.0.0.1")], None),
            (&[("x-forwarded-host", "")], Some("b.example")),
            (&[("forwarded", "for=10.0.0.1;host=a.example")], Some("a.example")),
            (&[("forwarded", "for=\"[::1]\"; Host=\"a.example:80\", host=c")], Some("a.example")),
            (&[("forwarded", "for=\"a,b;host=x\";host=a.example")], Some("a.example")),
            (&[("forwarded", "for=a, for=b;host=c.example")], Some("b.example")),
            (&[("forwarded", "for=a")], Some("b.example")),
            (
                &[("forwarded", "host=c.example"), ("x-forwarded-host", "a.example")],
                Some("a.example"),
            ),
        ] {
            let lines = [&[("host", "b.example")], lines].concat();
            assert_eq!(host("/", &lines, true).as_deref(), expected, "{lines:?}");
            assert_eq!(host("/", &lines, false).as_deref(), Some("b.example"));
        }
    }
}
