//! Several gateways before one upstream, each with the address of its database.

use crate::common::{Gateway, Setup, Upstream};

/// What all gateways of a test have in common: a lease and a wait that are short enough to end in
/// a test.
pub(crate) fn hurried(upstream: &Upstream) -> Setup {
    on(upstream).defaults("lease = \"2s\"\nwait = \"1s\"")
}

/// Gateways with nothing but defaults, for callers who carry no credential.
pub(crate) fn on(upstream: &Upstream) -> Setup {
    Setup::new(&upstream.url()).defaults("caller = [\"anonymous\"]")
}

/// Starts a gateway for each of these databases, which may all be the same.
pub(crate) async fn start(setup: &Setup, databases: &[String]) -> Vec<Gateway> {
    let mut gateways = Vec::new();
    for url in databases {
        gateways.push(setup.clone().argument("--store").argument(url).start().await);
    }
    gateways
}

/// Stops them all, which has to go well.
pub(crate) async fn stop(gateways: Vec<Gateway>) {
    for gateway in &gateways {
        gateway.signal("TERM");
    }
    for gateway in gateways {
        assert!(gateway.wait_for_exit().await.success(), "{:#?}", gateway.log_lines());
    }
}
