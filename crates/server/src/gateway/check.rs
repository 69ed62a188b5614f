//! What can be read as a request, and no upstream should see.

use std::net::Ipv6Addr;

use http::{Method, Request, StatusCode, Version, header, uri::Scheme};

/// What is wrong with a request, as status and as a sentence.
pub(crate) type Wrong = (StatusCode, &'static str);

/// Whether the request names one thing at one host.
pub(crate) fn check<B>(request: &Request<B>, fields_max: usize) -> Result<(), Wrong> {
    // HTTP/2 limits their bytes only.
    if request.headers().len() > fields_max {
        let detail = "the request has more header fields than this gateway takes";
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail));
    }
    if request.method() == Method::CONNECT {
        let detail = "this is a gateway in front of an API, not a proxy to elsewhere";
        return Err((StatusCode::METHOD_NOT_ALLOWED, detail));
    }
    target(request).and_then(|()| host(request)).map_err(|detail| (StatusCode::BAD_REQUEST, detail))
}

fn target<B>(request: &Request<B>) -> Result<(), &'static str> {
    let uri = request.uri();
    match uri.scheme() {
        // A path, or what CONNECT alone may ask for.
        None if uri.authority().is_some() => return Err("the target does not begin with a slash"),
        Some(scheme) if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS => {
            return Err("the target is neither http nor https");
        }
        None | Some(_) => {}
    }
    // The path of a query alone is read as the root, but HTTP/2 has no such form.
    if request.version() == Version::HTTP_2
        && uri.path_and_query().is_some_and(|target| target.as_str().starts_with('?'))
    {
        return Err("the target does not begin with a slash");
    }
    match uri.path() {
        "*" if request.method() == Method::OPTIONS => Ok(()),
        path if path.starts_with('/') => Ok(()),
        _ => Err("the target does not begin with a slash"),
    }
}

fn host<B>(request: &Request<B>) -> Result<(), &'static str> {
    let authority = request.uri().authority();
    let mut lines = request.headers().get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err("the request names its host more than once");
    }
    let named = match request.version() {
        Version::HTTP_2 => line.is_some() || authority.is_some(),
        Version::HTTP_11 => line.is_some(),
        _ => true,
    };
    if !named {
        return Err("the request does not name its host");
    }
    let good = authority.is_none_or(|authority| is_host(authority.as_str().as_bytes()))
        && line.is_none_or(|line| is_host(line.as_bytes()));
    if good { Ok(()) } else { Err("the request names a host that is none") }
}

/// Whether this is a host and perhaps a port, as RFC 3986 writes them. A name and a password before
/// them are refused, as RFC 9110 advises.
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
        check(&request.body(()).unwrap(), 100).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn a_host_is_a_name_or_an_address_and_perhaps_a_port() {
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
    fn a_request_names_one_host() {
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
    fn a_request_names_one_thing() {
        assert_eq!(checked("OPTIONS", Version::HTTP_11, "*", &["a"]), None);
        assert_eq!(checked("POST", Version::HTTP_11, "*", &["a"]), Some(400));
        assert_eq!(checked("POST", Version::HTTP_11, "charges", &["a"]), Some(400));
        assert_eq!(checked("GET", Version::HTTP_11, "ftp://a/", &["a"]), Some(400));
        assert_eq!(checked("CONNECT", Version::HTTP_11, "a:443", &["a"]), Some(405));
        assert_eq!(checked("GET", Version::HTTP_11, "http://a?x=1", &["a"]), None);
        assert_eq!(checked("GET", Version::HTTP_2, "http://a?x=1", &[]), Some(400));
    }
}
