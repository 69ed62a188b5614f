//! The networks that a client may be in.

use std::{fmt, net::IpAddr, str::FromStr};

use http::{HeaderName, request::Parts};

use super::{CallerRefusal, ClientContext};
use crate::refusal::CallerFailure;

/// An IP network: `10.0.0.0/8`, `2001:db8::/32`, or one address.
///
/// ```
/// use semel_tower::Network;
///
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?));
/// assert!(!network.contains("11.1.2.3".parse()?));
/// assert!("10.0.0.1/8".parse::<Network>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

/// Why a text is no [`Network`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkError(&'static str);

impl Network {
    /// Whether an address is in the network. An IPv4 address in IPv6 notation is an IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4()
            && masked(address, self.prefix) == masked(self.address, self.prefix)
    }
}

/// Refuses a header from outside the networks. It is never treated as absent: the request could
/// pass as anonymous.
pub(super) fn require_network(
    name: &HeaderName,
    networks: &[Network],
    parts: &Parts,
) -> Result<(), CallerRefusal> {
    let peer = ClientContext::of(&parts.extensions).and_then(|client| client.address);
    if peer.is_some_and(|peer| networks.iter().any(|network| network.contains(peer))) {
        return Ok(());
    }
    let detail =
        format!("the header {name} is accepted only from the networks that this route lists");
    Err(CallerRefusal::new(CallerFailure::Network, detail))
}

/// The first bits of an address.
fn masked(address: IpAddr, prefix: u32) -> u128 {
    let (bits, width) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32_u32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let rest = width.saturating_sub(prefix);
    bits.checked_shr(rest).and_then(|bits| bits.checked_shl(rest)).unwrap_or(0)
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let no_network = || {
            NetworkError(
                "this is not a network: write an address and a prefix length, such as 10.0.0.0/8 \
                 or 2001:db8::/32",
            )
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| no_network())?.to_canonical();
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(digits) => digits.parse::<u32>().map_err(|_| no_network())?,
            None => width,
        };
        if prefix > width {
            return Err(no_network());
        }
        let network = Self { address, prefix };
        if masked(address, prefix) != masked(address, width) {
            return Err(NetworkError(
                "this is an address in a network, not the network: its last bits must be zero",
            ));
        }
        Ok(network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NetworkError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_contains_the_addresses_with_its_first_bits() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.1.0.0/31", "10.1.0.1", "10.1.0.2"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.8"),
            ("0.0.0.0/0", "203.0.113.1", "::1"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("10.0.0.0/8", "::ffff:10.0.0.1", "::ffff:11.0.0.1"),
        ] {
            assert!(contains(network, inside), "{network} {inside}");
            assert!(!contains(network, outside), "{network} {outside}");
        }
    }

    #[test]
    fn an_invalid_network_is_refused() {
        for text in
            ["", "10.0.0.0/33", "::/129", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/-1", "a/8", "10/8"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert_eq!("192.0.2.7".parse::<Network>().unwrap().to_string(), "192.0.2.7/32");
    }
}
