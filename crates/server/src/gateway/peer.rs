//! Who is at the other end of a client's connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::listen::Place;

/// A client's connection, as its requests see it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    tls: bool,
    /// Set when the connection stops to speak HTTP.
    upgraded: Arc<AtomicBool>,
    /// A connection counts for as long as anything of it is left, also after an upgrade.
    _place: Place,
}

impl Peer {
    pub(crate) const fn new(
        address: SocketAddr,
        tls: bool,
        upgraded: Arc<AtomicBool>,
        place: Place,
    ) -> Self {
        Self { address, tls, upgraded, _place: place }
    }

    pub(crate) fn upgrade(&self) {
        self.upgraded.store(true, Ordering::Relaxed);
    }

    pub(crate) const fn scheme(&self) -> &'static str {
        if self.tls { "https" } else { "http" }
    }
}
