//! The proxies in front that are trusted, and the address of a client behind them.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, header};
use semel_config::Gateway;
use semel_tower::Network;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Which peers are proxies, whose headers say where a request comes from.
#[derive(Clone, Debug, Default)]
pub(crate) enum TrustedProxies {
    #[default]
    None,
    /// Every peer is one.
    All,
    Listed(Vec<Network>),
}

impl TrustedProxies {
    pub(crate) fn new(config: &Gateway) -> Self {
        match (config.trust_forwarded, config.trusted_proxies.as_slice()) {
            (false, _) => Self::None,
            (true, []) => Self::All,
            (true, networks) => Self::Listed(networks.to_vec()),
        }
    }

    /// Whether a peer is one.
    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Listed(_) => self.lists(peer),
        }
    }

    /// Whether some peers may be trusted and this one is not, so that its headers prove nothing.
    pub(crate) fn excludes(&self, peer: IpAddr) -> bool {
        matches!(self, Self::Listed(_)) && !self.lists(peer)
    }

    fn lists(&self, address: IpAddr) -> bool {
        match self {
            Self::None | Self::All => false,
            Self::Listed(networks) => networks.iter().any(|network| network.contains(address)),
        }
    }

    /// The address of the client that sent a request to this peer: the last one in the headers that
    /// is no proxy. What a client writes itself stands before that. `None` if the peer is not
    /// trusted, or if it does not say.
    pub(crate) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        if !self.contains(peer) {
            return None;
        }
        let mut client = None;
        for address in addresses(headers) {
            // Nothing before an entry that cannot be read is known to be true.
            let Some(address) = address else { break };
            client = Some(address);
            if !self.lists(address) {
                break;
            }
        }
        client
    }
}

/// The addresses that proxies have added, the last one first. Each proxy appends to
/// `X-Forwarded-For`, or to `Forwarded` where that is missing.
fn addresses(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let list = |name: HeaderName| {
        let lines = headers.get_all(name).into_iter();
        let entries = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let entries = entries.map(|entry| str::from_utf8(entry).unwrap_or_default().trim());
        entries.rev().collect::<Vec<_>>()
    };
    let listed = list(X_FORWARDED_FOR);
    if !listed.is_empty() {
        return listed.into_iter().map(address).collect();
    }
    list(header::FORWARDED).into_iter().map(forwarded_for).collect()
}

/// The `for` of an element of `Forwarded`. A quoted text with a comma is not an address, and its
/// parts are none either.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let mut nodes = pairs.filter(|(name, _)| name.trim().eq_ignore_ascii_case("for"));
    address(nodes.next()?.1.trim().trim_matches('"'))
}

/// An address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Ok(with_port) = text.parse::<std::net::SocketAddr>() {
        return Some(with_port.ip());
    }
    text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(networks: &[&str]) -> TrustedProxies {
        TrustedProxies::Listed(networks.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn client(
        proxies: &TrustedProxies,
        peer: &str,
        lines: &[(&'static str, &str)],
    ) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        let client = proxies.client(peer.parse().unwrap(), &headers);
        client.map(|address| address.to_string())
    }

    #[test]
    fn the_last_address_that_is_no_proxy_is_the_client() {
        let proxies = listed(&["10.0.0.0/8", "2001:db8::/32"]);
        for (peer, lines, expected) in [
            ("10.0.0.1", &[("x-forwarded-for", "1.1.1.1, 192.0.2.7")][..], Some("192.0.2.7")),
            ("10.0.0.1", &[("x-forwarded-for", "1.1.1.1, 192.0.2.7, 10.0.0.9")], Some("192.0.2.7")),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "192.0.2.7")],
                Some("192.0.2.7"),
            ),
            ("10.0.0.1", &[("x-forwarded-for", "192.0.2.7:4711")], Some("192.0.2.7")),
            ("10.0.0.1", &[("x-forwarded-for", "10.0.0.5")], Some("10.0.0.5")),
            ("10.0.0.1", &[("x-forwarded-for", "1.1.1.1, unknown")], None),
            ("10.0.0.1", &[("x-forwarded-for", "1.1.1.1, unknown, 10.0.0.9")], Some("10.0.0.9")),
            ("10.0.0.1", &[], None),
            (
                "10.0.0.1",
                &[("forwarded", "for=192.0.2.7;proto=http, for=10.0.0.2")],
                Some("192.0.2.7"),
            ),
            ("2001:db8::1", &[("forwarded", "For=\"[2001:dead::7]:4711\"")], Some("2001:dead::7")),
            ("10.0.0.1", &[("forwarded", "for=1.1.1.1, for=_hidden")], None),
            ("192.0.2.1", &[("x-forwarded-for", "1.1.1.1")], None),
        ] {
            assert_eq!(client(&proxies, peer, lines).as_deref(), expected, "{peer} {lines:?}");
        }
        assert!(proxies.excludes("192.0.2.1".parse().unwrap()));
        assert!(!proxies.excludes("10.1.1.1".parse().unwrap()));
    }

    #[test]
    fn without_a_list_the_proxy_before_the_gateway_says_who_its_client_is() {
        let lines = [("x-forwarded-for", "1.1.1.1, 192.0.2.7")];
        assert_eq!(client(&TrustedProxies::All, "10.0.0.1", &lines).as_deref(), Some("192.0.2.7"));
        assert_eq!(client(&TrustedProxies::None, "10.0.0.1", &lines), None);
    }
}
