//! Who is let in at all, before anybody looks at what is asked.

use std::net::{IpAddr, SocketAddr};

use axum::http::{Request, header, uri::Authority};

use super::refusal::Refusal;

/// What the listener's own address says about who may ask what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// Only this machine reaches the listener.
    loopback: bool,
    /// An operator's token is configured.
    guarded: bool,
}

impl Gate {
    pub(super) fn new(address: SocketAddr, guarded: bool) -> Self {
        Self { loopback: is_loopback(address), guarded }
    }

    /// Whether records can be read here.
    pub(super) const fn shows_records(self) -> bool {
        self.loopback || self.guarded
    }

    pub(super) fn check<B>(self, request: &Request<B>) -> Result<(), Refusal> {
        if self.loopback && !hosts(request).all(is_own_host) {
            return Err(Refusal::foreign_host());
        }
        if !self.shows_records() && request.uri().path().starts_with("/v1/") {
            return Err(Refusal::exposed());
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

/// A page that somebody's browser shows can make it ask this machine under the page's own name
/// (DNS rebinding), and would read the answer. Under a number or `localhost` it cannot.
fn is_own_host(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let number = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || number.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(gate: Gate, host: &str, path: &str) -> bool {
        let request = Request::get(path).header("host", host).body(()).unwrap();
        gate.check(&request).is_ok()
    }

    #[test]
    fn a_page_under_its_own_name_does_not_reach_this_machine() {
        let gate = Gate::new("127.0.0.1:8081".parse().unwrap(), true);
        for good in ["127.0.0.1:8081", "localhost", "LOCALHOST:8081", "[::1]:8081", "10.0.0.1"] {
            assert!(asked(gate, good, "/v1/records"), "{good}");
        }
        for bad in ["evil.example", "evil.example:8081", "localhost.evil.example", "", "é"] {
            assert!(!asked(gate, bad, "/v1/records"), "{bad}");
        }
        let gate = Gate::new("0.0.0.0:8081".parse().unwrap(), true);
        assert!(asked(gate, "semel.internal:8081", "/v1/records"));
    }

    #[test]
    fn records_are_not_shown_to_a_whole_network_without_a_token() {
        for address in ["0.0.0.0:8081", "[::]:8081", "192.0.2.7:8081"] {
            let open = Gate::new(address.parse().unwrap(), false);
            assert!(!asked(open, "h", "/v1/records") && !asked(open, "h", "/v1/resolve"));
            assert!(asked(open, "h", "/healthz") && asked(open, "h", "/metrics"));
            assert!(asked(Gate::new(address.parse().unwrap(), true), "h", "/v1/records"));
        }
        for address in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(asked(Gate::new(address.parse().unwrap(), false), "[::1]", "/v1/records"));
        }
    }
}
