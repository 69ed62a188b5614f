//! Access checks before routing: the `Host` header, and records without a token.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::http::{Request, Version, header, uri::Authority};

use super::api_error::ApiError;

/// The access rules that follow from the listen address.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessCheck {
    /// Only this machine reaches the listener.
    loopback: bool,
    /// A token is configured.
    guarded: bool,
}

impl AccessCheck {
    pub(super) fn new(address: SocketAddr, guarded: bool) -> Self {
        Self { loopback: is_loopback(address), guarded }
    }

    /// Whether records can be read here.
    pub(super) const fn shows_records(self) -> bool {
        self.loopback || self.guarded
    }

    pub(super) fn check<B>(self, request: &Request<B>) -> Result<(), ApiError> {
        let mut named = request.headers().get_all(header::HOST).iter();
        let count = (named.next().is_some(), named.next().is_some());
        match (request.version(), count) {
            (Version::HTTP_11, (false, _)) => {
                return Err(ApiError::malformed("The request does not name its host."));
            }
            (_, (_, true)) => {
                return Err(ApiError::malformed("The request names its host more than once."));
            }
            _ => {}
        }
        if self.loopback && !hosts(request).all(is_own_host) {
            return Err(ApiError::host_not_local());
        }
        if !self.shows_records() && request.uri().path().starts_with("/v1/") {
            return Err(ApiError::token_required_for_remote());
        }
        Ok(())
    }
}

/// Whether only this machine reaches an address.
pub(super) fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// The hosts that a request names, readable or not.
fn hosts<B>(request: &Request<B>) -> impl Iterator<Item = &str> {
    let named = request.headers().get_all(header::HOST).iter();
    let named = named.map(|host| host.to_str().unwrap_or_default());
    named.chain(request.uri().authority().map(Authority::as_str))
}

/// Accepts IP addresses and `localhost` only. A web page can resolve its own name to this machine
/// (DNS rebinding) and read the answer, but it cannot use these names.
fn is_own_host(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((number, port)) = rest.split_once(']') else { return false };
        return number.parse::<Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    (name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok())
        && (port.is_empty() || is_port(port))
}

/// Whether this is a colon and a port, which may be empty.
fn is_port(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|port| port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;

    fn allows(gate: AccessCheck, host: &str, path: &str) -> bool {
        let request = Request::get(path).header("host", host).body(()).unwrap();
        gate.check(&request).is_ok()
    }

    #[test]
    fn dns_rebinding_is_refused() {
        let gate = AccessCheck::new("127.0.0.1:8081".parse().unwrap(), true);
        for good in ["127.0.0.1:8081", "localhost", "LOCALHOST:8081", "[::1]:8081", "10.0.0.1"] {
            assert!(allows(gate, good, "/v1/records"), "{good}");
        }
        for bad in ["evil.example", "evil.example:8081", "localhost.evil.example", "", "é"] {
            assert!(!allows(gate, bad, "/v1/records"), "{bad}");
        }
        for bad in ["[::1].evil.example", "evil.example@localhost", "u:p@127.0.0.1", "[localhost]"]
        {
            assert!(!allows(gate, bad, "/v1/records"), "{bad}");
        }
        for bad in ["[127.0.0.1]", "::1", "localhost:http", "localhost:1:2", "[::1]x"] {
            assert!(!allows(gate, bad, "/v1/records"), "{bad}");
        }
        let gate = AccessCheck::new("0.0.0.0:8081".parse().unwrap(), true);
        assert!(allows(gate, "semel.internal:8081", "/v1/records"));
    }

    #[test]
    fn a_request_names_its_host_once() {
        for address in ["127.0.0.1:8081", "0.0.0.0:8081"] {
            let gate = AccessCheck::new(address.parse().unwrap(), true);
            let status = |version: Version, hosts: &[&str]| {
                let mut request = Request::get("/healthz").version(version);
                for host in hosts {
                    request = request.header("host", *host);
                }
                let checked = gate.check(&request.body(()).unwrap());
                checked.err().map(|api_error| api_error.into_response().status().as_u16())
            };
            assert_eq!(status(Version::HTTP_11, &["127.0.0.1"]), None);
            assert_eq!(status(Version::HTTP_11, &[]), Some(400));
            assert_eq!(status(Version::HTTP_11, &["127.0.0.1", "127.0.0.1"]), Some(400));
            // HTTP/1.0 has no such rule, and no browser speaks it.
            assert_eq!(status(Version::HTTP_10, &[]), None);
        }
    }

    #[test]
    fn records_are_not_shown_to_a_whole_network_without_a_token() {
        for address in ["0.0.0.0:8081", "[::]:8081", "192.0.2.7:8081"] {
            let open = AccessCheck::new(address.parse().unwrap(), false);
            assert!(!allows(open, "h", "/v1/records") && !allows(open, "h", "/v1/resolve"));
            assert!(allows(open, "h", "/healthz") && allows(open, "h", "/metrics"));
            assert!(allows(AccessCheck::new(address.parse().unwrap(), true), "h", "/v1/records"));
        }
        for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(allows(
                AccessCheck::new(address.parse().unwrap(), false),
                "[::1]",
                "/v1/records"
            ));
        }
    }
}
