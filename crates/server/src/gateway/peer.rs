//! Who is at the other end of a client's connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{alarm::SharedAlarm, listen::Place, stop::Stop};

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its address, as headers say it.
    ip: Box<str>,
    /// The same, and how it came, as an element of `Forwarded`.
    forwarded: Box<str>,
    tls: bool,
    /// Set when the connection stops to speak HTTP.
    upgraded: Arc<AtomicBool>,
    /// The end of the gateway.
    pub(crate) stop: Stop,
    /// How long a body that it sends may take, where it sends one at a time.
    pub(crate) alarm: SharedAlarm,
    /// Weak: a request that outlives its connection does not keep another client out.
    place: Weak<Place>,
}

impl Peer {
    pub(crate) fn new(
        address: SocketAddr,
        tls: bool,
        upgraded: Arc<AtomicBool>,
        stop: Stop,
        place: &Arc<Place>,
    ) -> Self {
        let ip = address.ip().to_canonical();
        let node = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("\"[{ip}]\""),
        };
        let forwarded = format!("for={node};proto={}", scheme(tls)).into();
        let (ip, place) = (ip.to_string().into(), Arc::downgrade(place));
        let alarm = SharedAlarm::default();
        Self { ip, forwarded, tls, upgraded, stop, alarm, place }
    }

    pub(crate) fn ip(&self) -> &str {
        &self.ip
    }

    pub(crate) fn forwarded(&self) -> &str {
        &self.forwarded
    }

    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// The place of its connection, for whoever goes on with that; `None` if it has ended.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.upgrade()
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        scheme(self.tls)
    }
}

const fn scheme(tls: bool) -> &'static str {
    if tls { "https" } else { "http" }
}
