//! Refuses requests that parse as HTTP but must not reach an upstream.

use std::net::Ipv6Addr;

use http::{HeaderMap, HeaderName, Method, Request, StatusCode, Version, header, uri::Scheme};

use crate::headers;
use semel_http1::BadRequest;

/// Checks the method, the target and the host. A TRACE response would echo fields that the gateway
/// adds for the upstream alone, so TRACE is refused unless a route names the method.
pub(crate) fn check<B>(
    request: &Request<B>,
    fields_max: usize,
    allows_trace: bool,
) -> Result<(), BadRequest> {
    // HTTP/2 limits only their size in bytes.
    if request.headers().len() > fields_max {
        let detail = "The request has too many header fields.";
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    }
    if request.method() == Method::CONNECT {
        let detail = "CONNECT is not supported: this gateway is not a forward proxy.";
        return Err((StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    if request.method() == Method::TRACE && !allows_trace {
        let detail = "TRACE is allowed only where a route names it.";
        return Err((StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    check_names(request)
        .and_then(|()| check_target(request))
        .and_then(|()| check_host(request))
        .map_err(|detail| (StatusCode::BAD_REQUEST, detail))
}

/// Refuses a `Connection` header that names a field that was `read`. The gateway removes the fields
/// that it names, so the upstream would act on another request than the one whose key, caller and
/// signature were checked.
pub(crate) fn check_connection(headers: &HeaderMap, read: &[HeaderName]) -> Result<(), String> {
    const ALWAYS: [HeaderName; 5] = [
        header::AUTHORIZATION,
        header::CONTENT_ENCODING,
        header::CONTENT_TYPE,
        header::COOKIE,
        header::HOST,
    ];
    let is_read = |name: &HeaderName| ALWAYS.contains(name) || read.contains(name);
    let Some(name) = headers::connection_options(headers).find(is_read) else { return Ok(()) };
    Err(format!(
        "The Connection header names {name}, which this gateway reads and the upstream would not \
         get. Connection may only name hop-by-hop fields."
    ))
}

/// `http` allows a quote in the name of a field, and HTTP/2 does not parse names further.
fn check_names<B>(request: &Request<B>) -> Result<(), &'static str> {
    let quoted = request.version() == Version::HTTP_2
        && request.headers().keys().any(|name| name.as_str().contains('"'));
    if quoted { Err("The name of a header field is invalid.") } else { Ok(()) }
}

fn check_target<B>(request: &Request<B>) -> Result<(), &'static str> {
    let uri = request.uri();
    match uri.scheme() {
        // A path, or an authority, which only CONNECT may use.
        None if uri.authority().is_some() => {
            return Err("The request target does not begin with a slash.");
        }
        Some(scheme) if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS => {
            return Err("The scheme of the request target is neither http nor https.");
        }
        None | Some(_) => {}
    }
    // `http` allows UTF-8, which no request line may have (RFC 3986).
    if !uri.path_and_query().is_none_or(|target| target.as_str().is_ascii()) {
        return Err("The request target has a character outside of ASCII; percent-encode it.");
    }
    // A target without a path means the root, but HTTP/2 does not allow that form.
    if request.version() == Version::HTTP_2
        && uri.path_and_query().is_some_and(|target| target.as_str().starts_with('?'))
    {
        return Err("The request target does not begin with a slash.");
    }
    match uri.path() {
        "*" if request.method() == Method::OPTIONS => Ok(()),
        path if path.starts_with('/') => Ok(()),
        _ => Err("The request target does not begin with a slash."),
    }
}

fn check_host<B>(request: &Request<B>) -> Result<(), &'static str> {
    let authority = request.uri().authority();
    let mut lines = request.headers().get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err("The request has more than one Host header.");
    }
    let has_host = match request.version() {
        Version::HTTP_2 => line.is_some() || authority.is_some(),
        Version::HTTP_11 => line.is_some(),
        _ => true,
    };
    if !has_host {
        return Err("The Host header is missing.");
    }
    let good = authority.is_none_or(|authority| is_host(authority.as_str().as_bytes()))
        && line.is_none_or(|line| is_host(line.as_bytes()));
    if good { Ok(()) } else { Err("The Host header is not a valid host name.") }
}

/// Whether this is a host with an optional port (RFC 3986). User information is refused, as RFC
/// 9110 advises.
fn is_host(text: &[u8]) -> bool {
    let (name, port) = match text.iter().rposition(|byte| matches!(byte, b':' | b']')) {
        Some(at) if text.get(at) == Some(&b':') => {
            (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())
        }
        _ => (text, &[][..]),
    };
    let name = match name {
        [b'[', address @ .., b']'] => {
            str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok())
        }
        name => name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(byte)),
    };
    name && port.len() <= 5 && port.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(method: &str, version: Version, target: &str, hosts: &[&str]) -> Option<u16> {
        let mut request = Request::builder().method(method).version(version).uri(target);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        check(&request.body(()).unwrap(), 100, false).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_host_is_a_name_or_an_address_with_an_optional_port() {
        for good in
            ["a", "a.example-1.org", "a:80", "a:", "127.0.0.1:65535", "[::1]", "[::1]:8", ""]
        {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        let bad =
            ["a b", "a:b", "a:1:2", "a:123456", "u@a", "u:p@a", "[::1", "::1", "[a]", "[::1]a"];
        for bad in bad.into_iter().chain(["a/b", "a?b", "a\\b", "\"a\"", "<a>", "\u{e9}"]) {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn the_name_of_a_field_is_a_token() {
        for byte in 1..=u8::MAX {
            let Ok(name) = HeaderName::from_bytes(&[b'x', byte]) else { continue };
            let request = Request::post("http://a/").version(Version::HTTP_2).header(name, "1");
            let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let checked = check(&request.body(()).unwrap(), 100, false);
            assert_eq!(checked.is_ok(), is_token, "{:?}", char::from(byte));
        }
    }

    #[test]
    fn a_connection_header_must_not_name_a_field_that_is_read() {
        let read = [HeaderName::from_static("x-merchant-id")];
        let wrong = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (header::CONNECTION, line.parse().unwrap()));
            check_connection(&lines.collect(), &read).err()
        };
        for good in [&["keep-alive"][..], &["close, TE"], &["Upgrade"], &["X-Mine", "x-merchant"]] {
            assert_eq!(wrong(good), None, "{good:?}");
        }
        for (bad, name) in [
            (&["X-Merchant-Id"][..], "x-merchant-id"),
            (&["close", "te ,\tx-merchant-ID,"], "x-merchant-id"),
            (&["Authorization"], "authorization"),
            (&["keep-alive, cookie"], "cookie"),
            (&["host"], "host"),
        ] {
            let detail = wrong(bad).unwrap();
            assert!(detail.contains(&format!("names {name},")), "{detail}");
        }
    }

    #[test]
    fn a_request_must_name_exactly_one_host() {
        assert_eq!(checked("GET", Version::HTTP_11, "/", &["a"]), None);
        assert_eq!(checked("GET", Version::HTTP_11, "/", &[]), Some(400));
        assert_eq!(checked("GET", Version::HTTP_11, "/", &["a", "a"]), Some(400));
        assert_eq!(checked("GET", Version::HTTP_11, "http://a/", &["b"]), None);
        assert_eq!(checked("GET", Version::HTTP_11, "http://u@a/", &["a"]), Some(400));
        assert_eq!(checked("GET", Version::HTTP_10, "/", &[]), None);
        assert_eq!(checked("GET", Version::HTTP_2, "http://a/", &[]), None);
        assert_eq!(checked("GET", Version::HTTP_2, "/", &["a"]), None);
        assert_eq!(checked("GET", Version::HTTP_2, "/", &[]), Some(400));
    }

    #[test]
    fn a_request_must_have_a_valid_target_and_method() {
        assert_eq!(checked("OPTIONS", Version::HTTP_11, "*", &["a"]), None);
        assert_eq!(checked("POST", Version::HTTP_11, "*", &["a"]), Some(400));
        assert_eq!(checked("POST", Version::HTTP_11, "charges", &["a"]), Some(400));
        assert_eq!(checked("GET", Version::HTTP_11, "ftp://a/", &["a"]), Some(400));
        assert_eq!(checked("CONNECT", Version::HTTP_11, "a:443", &["a"]), Some(405));
        assert_eq!(checked("TRACE", Version::HTTP_11, "/", &["a"]), Some(405));
        let trace = Request::builder().method("TRACE").uri("/").header(header::HOST, "a");
        assert_eq!(check(&trace.body(()).unwrap(), 100, true), Ok(()), "a route names TRACE");
        assert_eq!(checked("GET", Version::HTTP_11, "http://a?x=1", &["a"]), None);
        assert_eq!(checked("GET", Version::HTTP_2, "http://a?x=1", &[]), Some(400));
        for version in [Version::HTTP_11, Version::HTTP_2] {
            for target in ["http://a/caf\u{e9}", "http://a/?x=\u{e9}"] {
                assert_eq!(checked("GET", version, target, &["a"]), Some(400), "{target:?}");
            }
            assert_eq!(checked("GET", version, "http://a/caf%C3%A9?{|}", &["a"]), None);
        }
    }
}
