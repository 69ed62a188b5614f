//! Sign-in to the dashboard by a header that a proxy sets.

use std::net::IpAddr;

use http::HeaderName;
use semel_tower::Network;
use serde_json::{Value, json};

use super::{
    read::{FromToml, Located, OneOrMore, TomlValue, origin},
    report::DiagnosticReport,
    settings::{example, settings},
};

settings! {
    /// A proxy that signs users in to the dashboard and names them in a header.
    TrustedHeaderTable {
        /// The header with the name of the user. The proxy must replace what clients send.
        header: HeaderName = example("X-Forwarded-User");
        /// Address or network of the proxy, or a list. From other peers the header is ignored.
        from: OneOrMore<Network> = example("10.0.0.7/32");
        /// Users of the role operator, or "*" for all. Default: all users are viewers.
        operators: OneOrMore<String> = example(json!(["zoe@example.com"]));
    }
}

/// A header in which a proxy names the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedHeader {
    /// The header.
    pub header: HeaderName,
    from: Vec<Network>,
    operators: Vec<String>,
}

impl TrustedHeader {
    /// Whether the header counts in a request of this peer.
    #[must_use]
    pub fn is_from(&self, peer: IpAddr) -> bool {
        self.from.iter().any(|network| network.contains(peer))
    }

    /// Whether a user has the role operator.
    #[must_use]
    pub fn is_operator(&self, user: &str) -> bool {
        self.operators.iter().any(|name| name == "*" || name == user)
    }

    /// Whether any user has the role operator.
    #[must_use]
    pub const fn has_operators(&self) -> bool {
        !self.operators.is_empty()
    }

    /// The setting as TOML has it.
    pub(super) fn to_json(&self) -> Value {
        let from: Vec<String> = self.from.iter().map(ToString::to_string).collect();
        let mut table = json!({ "header": self.header.as_str(), "from": from });
        if self.has_operators()
            && let Value::Object(table) = &mut table
        {
            table.insert("operators".to_owned(), self.operators.clone().into());
        }
        table
    }
}

impl FromToml for TrustedHeader {
    fn read(found: &TomlValue<'_>, report: &mut DiagnosticReport<'_>) -> Option<Self> {
        let table = TrustedHeaderTable::read(found, report)?;
        for (is_absent, name) in
            [(table.header.is_absent(), "header"), (table.from.is_absent(), "from")]
        {
            if is_absent {
                report.add_error(&origin(found), format!("a trusted header needs `{name}`"));
            }
        }
        fn values<T: Clone>(list: &OneOrMore<T>) -> Vec<T> {
            list.0.iter().map(|item: &Located<T>| item.value.clone()).collect()
        }
        if table.operators.is_bad() {
            return None;
        }
        Some(Self {
            header: table.header.value()?.clone(),
            from: values(table.from.value()?),
            operators: table.operators.value().map(values).unwrap_or_default(),
        })
    }

    fn schema() -> Value {
        TrustedHeaderTable::schema()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Overrides};

    const HEAD: &str = "[gateway]\nupstream = \"http://127.0.0.1:1\"\n[api]\n";

    fn read(line: &str) -> Result<Config, String> {
        let text = format!("{HEAD}{line}\n");
        let file = Some("semel.toml".as_ref());
        let config = Config::read(file, &text, &Overrides::default(), &|_| None);
        config.map_err(|error| error.to_string())
    }

    #[test]
    fn a_header_counts_from_listed_networks_and_names_operators() {
        let line = "trusted_header = { header = \"X-User\", from = \"10.0.0.0/8\", \
                    operators = \"zoe\" }";
        let config = read(line).unwrap();
        let trusted = config.api.as_ref().unwrap().trusted_header.clone().unwrap();
        let from = |address: &str| trusted.is_from(address.parse().unwrap());
        assert!(from("10.1.2.3") && !from("11.0.0.1") && !from("::1"));
        assert!(trusted.is_operator("zoe") && !trusted.is_operator("ada"));
        let again = Config::read(None, &config.to_toml(), &Overrides::default(), &|_| None);
        assert_eq!(again.unwrap().api.unwrap().trusted_header, Some(trusted));
    }

    #[test]
    fn a_header_without_a_network_is_refused() {
        let error = read("trusted_header = { header = \"X-User\" }").unwrap_err();
        assert!(error.contains("needs `from`") && error.contains("semel.toml:4:18"), "{error}");
    }
}
