//! Who is at the other end of a client's connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{listen::Place, stop::Stop};

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    tls: bool,
    /// Set when the connection stops to speak HTTP.
    upgraded: Arc<AtomicBool>,
    /// The end of the gateway.
    pub(crate) stop: Stop,
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
        Self { address, tls, upgraded, stop, place: Arc::downgrade(place) }
    }

    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    /// The place of its connection, for whoever goes on with that; `None` if it has ended.
    pub(crate) fn place(&self) -> Option<Arc<Place>> {
        self.place.upgrade()
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}
