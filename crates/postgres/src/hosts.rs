//! Splits a URL with several hosts into one configuration for each.
//!
//! The kernel of a stopped server still accepts connections, but no reply comes. Each host has its
//! own timeout, so that such a host does not keep the others from being tried.

use std::time::Duration;

use tokio_postgres::{
    Config,
    config::{Host, LoadBalanceHosts},
};

/// The time that one host may take until a session is usable, and for a reply when a program
/// starts: twice the connect timeout.
pub(crate) fn host_timeout(config: &Config) -> Duration {
    let alone = config.get_connect_timeout().copied();
    alone.unwrap_or(Duration::from_secs(5)).saturating_mul(2)
}

/// One configuration for each host, in the order of the URL.
pub(crate) fn each(config: &Config) -> Vec<Config> {
    let (hosts, addresses, ports) =
        (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let count = hosts.len().max(addresses.len());
    let fits = |length: usize| length == 0 || length == count;
    let fit = fits(hosts.len()) && fits(addresses.len()) && (ports.len() < 2 || fits(ports.len()));
    if count < 2 || !fit {
        // A list that does not fit is left as it is: the driver reports it.
        return vec![config.clone()];
    }
    let one = |at: usize| {
        let mut one = without_hosts(config);
        match hosts.get(at) {
            Some(Host::Tcp(host)) => one.host(host),
            Some(Host::Unix(path)) => one.host_path(path),
            None => &mut one,
        };
        addresses.get(at).map(|address| one.hostaddr(*address));
        ports.get(at).or(ports.first()).map(|port| one.port(*port));
        one
    };
    (0..count).map(one).collect()
}

/// The name of the one host that a configuration has.
pub(crate) fn name(config: &Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    match config.get_hosts().first() {
        Some(Host::Tcp(host)) => format!("{host}:{port}"),
        Some(Host::Unix(path)) => format!("{}:{port}", path.display()),
        None => config.get_hostaddrs().first().map(|at| format!("{at}:{port}")).unwrap_or_default(),
    }
}

/// The order in which the hosts are tried: from the first on, or from a random one.
pub(crate) fn order(config: &Config, count: usize) -> impl Iterator<Item = usize> {
    let mut first = [0];
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        let _ = getrandom::fill(&mut first);
    }
    let first = usize::from(first[0]);
    (0..count).map(move |at| (first + at) % count)
}

/// A copy of the configuration without its hosts.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    config.get_user().map(|user| copy.user(user));
    config.get_password().map(|password| copy.password(password));
    config.get_dbname().map(|name| copy.dbname(name));
    config.get_options().map(|options| copy.options(options));
    config.get_application_name().map(|name| copy.application_name(name));
    config.get_connect_timeout().map(|timeout| copy.connect_timeout(*timeout));
    config.get_tcp_user_timeout().map(|timeout| copy.tcp_user_timeout(*timeout));
    config.get_keepalives_interval().map(|interval| copy.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| copy.keepalives_retries(retries));
    copy.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .target_session_attrs(config.get_target_session_attrs())
        .load_balance_hosts(config.get_load_balance_hosts());
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_the_common_settings_and_its_own_port() {
        let url = "postgres://u:p@a:1,b:2/d?connect_timeout=3&target_session_attrs=read-write\
                   &sslmode=require&channel_binding=require&options=-c%20x=y&application_name=n\
                   &keepalives=0&keepalives_idle=4&keepalives_interval=5&keepalives_retries=6\
                   &tcp_user_timeout=7&load_balance_hosts=random";
        let config: Config = url.parse().unwrap();
        let alone = ["a:1", "b:2"].map(|host| url.replace("a:1,b:2", host).parse().unwrap());
        assert_eq!(each(&config), alone);
        assert_eq!(host_timeout(&config), Duration::from_secs(6));
    }

    #[test]
    fn addresses_go_with_their_hosts_and_one_port_applies_to_all() {
        let config: Config = "host=a,/tmp port=7 user=u".parse().unwrap();
        let alone = ["host=a port=7 user=u", "host=/tmp port=7 user=u"];
        assert_eq!(each(&config), alone.map(|alone| alone.parse().unwrap()));
        let config: Config = "host=a,b hostaddr=127.0.0.1,::1".parse().unwrap();
        let alone = ["host=a hostaddr=127.0.0.1", "host=b hostaddr=::1"];
        assert_eq!(each(&config), alone.map(|alone| alone.parse().unwrap()));
    }

    #[test]
    fn lists_of_different_lengths_are_left_as_they_are() {
        let config: Config = "host=a,b,c port=1,2".parse().unwrap();
        assert_eq!(each(&config), [config]);
    }
}
