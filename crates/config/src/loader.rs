//! The state of building a configuration, and what several tables need of it: environment
//! variables, paths and upstreams.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use super::{
    Upstream,
    files::{CheckFile, FileCheck},
    read::{Located, TomlField},
    report::{DiagnosticReport, ValueOrigin},
    rules::UpstreamRule,
    urls::Env,
    values::ForwardedHost,
};

/// The state of building a configuration.
pub(super) struct Loader<'a, 'r> {
    /// The folder of the file: its relative paths start here.
    pub(super) folder: &'a Path,
    pub(super) env: Env<'a>,
    pub(super) check_file: CheckFile<'a>,
    /// The addresses that the server listens on.
    pub(super) own_addresses: Vec<SocketAddr>,
    /// Whether a proxy in front sets the headers that describe the origin of a request.
    pub(super) trust_forwarded: bool,
    /// Whether clients are asked for a certificate.
    pub(super) verifies_clients: bool,
    pub(super) report: &'a mut DiagnosticReport<'r>,
}

impl Loader<'_, '_> {
    /// What an environment variable holds.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name)
    }

    /// An upstream as a rule describes it, over another.
    pub(super) fn upstream(
        &mut self,
        rule: &Located<UpstreamRule>,
        base: Option<&Upstream>,
    ) -> Option<Upstream> {
        let table = &rule.value.0;
        let mut upstream = match &table.url {
            TomlField::Good(url) => {
                if self
                    .own_addresses
                    .iter()
                    .any(|own_addresses| is_at(&url.value.0, *own_addresses))
                {
                    let message = "this is an address of the server itself: requests would loop";
                    self.report.add_error(&url.origin, message);
                }
                url.value.0.clone()
            }
            TomlField::Bad => return None,
            TomlField::Absent => match base {
                Some(base) => base.clone(),
                None => {
                    let message = "the upstream has no `url`; set it here or with `--upstream URL`";
                    self.report.add_error(&rule.origin, message);
                    return None;
                }
            },
        };
        if let Some(protocol) = table.protocol.value() {
            upstream.protocol = *protocol;
        }
        if let Some(ca) = table.ca.get() {
            if upstream.tls {
                upstream.ca = Some(self.checked_path(&ca.value, &ca.origin, FileCheck::File));
            } else {
                self.report.add_error(&ca.origin, "`ca` has no effect on an http:// upstream");
            }
        }
        if let Some(host) = table.host.value() {
            upstream.sends_upstream_host = *host == ForwardedHost::Upstream;
        }
        if let Some(time) = table.connect_timeout.value() {
            upstream.connect_timeout = time.0;
        }
        if let Some(time) = table.timeout.value() {
            upstream.timeout = time.0;
        }
        if let Some(time) = table.pool_idle.value() {
            upstream.pool_idle = time.0;
        }
        if let Some(count) = table.pool_max.value() {
            upstream.pool_max = count.0;
        }
        Some(upstream)
    }

    /// A path, checked and resolved.
    pub(super) fn checked_path(
        &mut self,
        path: &Path,
        origin: &ValueOrigin,
        wanted: FileCheck,
    ) -> PathBuf {
        let path = self.path(path, origin);
        if let Err(message) = (self.check_file)(&path, wanted) {
            self.report.add_error(origin, message);
        }
        path
    }

    /// Resolves a relative path of the file against the file's folder.
    fn path(&self, path: &Path, origin: &ValueOrigin) -> PathBuf {
        match origin {
            ValueOrigin::File(_) => self.folder.join(path),
            ValueOrigin::Flag(_) | ValueOrigin::Missing => path.to_owned(),
        }
    }
}

/// Whether the URL of an upstream names this listener. Host names other than localhost are not
/// resolved.
fn is_at(upstream: &Upstream, own_addresses: SocketAddr) -> bool {
    let port = upstream.authority.port_u16().unwrap_or(if upstream.tls { 443 } else { 80 });
    let host = upstream.authority.host().trim_matches(['[', ']']);
    let local: &[IpAddr] = &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let named: Option<IpAddr> = host.parse().ok();
    let addresses = match &named {
        Some(address) if address.is_unspecified() => local,
        Some(address) => std::slice::from_ref(address),
        None if host.eq_ignore_ascii_case("localhost") => local,
        None => &[],
    };
    let is_own = |ip: &IpAddr| {
        *ip == own_addresses.ip() || (own_addresses.ip().is_unspecified() && ip.is_loopback())
    };
    own_addresses.port() == port && port != 0 && addresses.iter().any(is_own)
}
