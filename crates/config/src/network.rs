//! Networks of IP addresses, as `10.0.0.0/8` or as a single address.

use std::{fmt, net::IpAddr, str::FromStr};

use super::read::FromText;

/// A network: the addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Whether an address belongs to the network. An IPv4 address that is written as IPv6 counts as
    /// the IPv4 address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = own.to_bits() ^ other.to_bits();
                differing.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromText for Network {
    const EXPECTED: &'static str = "a network or an address: \"10.0.0.0/8\"";

    fn parse(text: &str) -> Result<Self, String> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| "this is not an IP address or a network".to_owned())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(bits_max), |bits| bits.parse().ok());
        let Some(bits) = bits.filter(|bits| *bits <= bits_max) else {
            return Err(format!("the length of this network is not a number up to {bits_max}"));
        };
        let network = Self { address, bits };
        let rest = u32::from(bits);
        let has_host = match address {
            IpAddr::V4(own) => own.to_bits().checked_shl(rest).is_some_and(|rest| rest != 0),
            IpAddr::V6(own) => own.to_bits().checked_shl(rest).is_some_and(|rest| rest != 0),
        };
        if has_host {
            return Err(format!(
                "this address has bits after the first {bits}; write the first address of the \
                 network"
            ));
        }
        Ok(network)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as FromText>::parse(text)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        <Network as FromText>::parse(text).unwrap()
    }

    #[test]
    fn a_network_contains_the_addresses_that_begin_with_its_bits() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.1.2", "11.0.0.1"),
            ("10.1.2.3", "::ffff:10.1.2.3", "10.1.2.4"),
            ("192.0.2.128/25", "192.0.2.255", "192.0.2.127"),
            ("0.0.0.0/0", "255.1.1.1", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "fe80::1", "10.0.0.1"),
            ("::1", "::1", "::2"),
        ] {
            let network = network(text);
            assert!(network.contains(inside.parse().unwrap()), "{inside} in {text}");
            assert!(!network.contains(outside.parse().unwrap()), "{outside} in {text}");
        }
        assert_eq!(network("10.0.0.0/8").to_string(), "10.0.0.0/8");
        assert_eq!(network("::1").to_string(), "::1/128");
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in
            ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0.1/8", "2001:db8::1/64", "host", "::/129"]
        {
            assert!(<Network as FromText>::parse(text).is_err(), "{text}");
        }
    }
}
