//! The host that a request is for, in one spelling.

use std::net::Ipv4Addr;

/// The name of the host in an authority (`user@host:port`), in lower case and without the dot that
/// may end a full name. `None` if there is no name: the text is empty, or the host is an IP
/// address.
///
/// An address names a machine, not a service: a client that does its own load balancing may use
/// another address for its next attempt. The port says only how the machine was reached.
///
/// ```
/// use semel_core::fingerprint::host_name;
///
/// assert_eq!(host_name("Shop-A.example.:8443").as_deref(), Some("shop-a.example"));
/// assert_eq!(host_name("10.0.0.7:8080"), None);
/// assert_eq!(host_name("[::1]:8080"), None);
/// ```
#[must_use]
pub fn host_name(authority: &str) -> Option<String> {
    let authority = authority.trim();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if host.starts_with('[') {
        return None;
    }
    let host = host.split_once(':').map_or(host, |(host, _)| host).trim_end_matches('.');
    let is_name = !host.is_empty() && host.parse::<Ipv4Addr>().is_err();
    is_name.then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for spelling in [
            "api.example.com",
            "API.Example.com",
            "api.example.com.",
            "api.example.com:443",
            "api.example.com.:8080",
            "user:secret@api.example.com:443",
            " api.example.com ",
        ] {
            assert_eq!(host_name(spelling).as_deref(), Some("api.example.com"), "{spelling}");
        }
        assert_eq!(host_name("localhost:8080").as_deref(), Some("localhost"));
        assert_ne!(host_name("a.example"), host_name("b.example"));
    }

    #[test]
    fn an_address_is_no_host() {
        for address in ["127.0.0.1", "127.0.0.1:80", "127.0.0.1.", "[::1]", "[::1]:80", "[v1.x]"] {
            assert_eq!(host_name(address), None, "{address}");
        }
        assert_eq!(host_name("127.0.0.1.example").as_deref(), Some("127.0.0.1.example"));
    }

    #[test]
    fn an_empty_text_is_not_a_host() {
        for nothing in ["", ".", ":80", " ", "user@"] {
            assert_eq!(host_name(nothing), None, "{nothing:?}");
        }
    }
}
