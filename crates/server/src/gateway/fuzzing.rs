//! The gateway for a fuzz target: connections without a socket, one after the other, each as if it
//! were the first.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use semel::{MemoryStore, Semel};
use semel_tower::Secret;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
};

use super::{
    House, connection, listen::Place, peer::Peer, site::Site, stop::Stopper, verify::Verifiers,
    worker::Worker,
};
use crate::{
    config::{Config, Overrides},
    ops::metrics::Metrics,
    store::CallerSecrets,
};

/// A gateway without a listener.
#[derive(Debug)]
pub struct Gateway {
    config: Config,
    worker: Arc<Worker>,
    _stopper: Stopper,
}

impl Gateway {
    /// A gateway in front of this upstream. It takes a POST only with a key.
    ///
    /// # Errors
    ///
    /// If its configuration is not what the program takes any more.
    pub fn new(upstream: SocketAddr) -> anyhow::Result<Self> {
        let source = format!(
            r#"
            store = "memory:"
            [gateway]
            upstream = "http://{upstream}"

            [[route]]
            match = "POST /**"
            scope = "posts"
            key = {{ header = "Idempotency-Key", required = true }}
            caller = ["anonymous"]
            "#
        );
        let config = Config::read(None, &source, &Overrides::default(), &|_| None)?;
        let (stopper, stop) = Stopper::new();
        let verifiers = Verifiers::new(&config)?;
        let worker = super::worker(&config, &house()?, &verifiers, &stop)?;
        Ok(Self { config, worker, _stopper: stopper })
    }

    /// Serves one connection to its end, on a store of its own, and waits for what it has begun.
    ///
    /// # Errors
    ///
    /// If something that it has begun goes on for ever.
    pub async fn serve<T>(&self, io: T, http2: bool) -> anyhow::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let house = house()?;
        let verifiers = Verifiers::new(&self.config)?;
        let site = Site::new(&self.config, &house, &verifiers, &self.worker.pools)?;
        self.worker.site.store(Arc::new(site));
        let place = place(&house)?;
        let peer = self.peer(&place);
        connection::speak(Box::new(io), http2, &peer, &self.worker).await;
        drop(place);
        let left = house.semel.drain(Duration::from_secs(3600)).await;
        (left == 0).then_some(()).context("an operation does not end")
    }
}

impl Gateway {
    fn peer(&self, place: &Arc<Place>) -> Arc<Peer> {
        let (address, stop) = ((Ipv4Addr::LOCALHOST, 1).into(), self.worker.stop.clone());
        Arc::new(Peer::new(address, false, stop, place))
    }

    /// What a connection is served with.
    #[cfg(test)]
    pub(super) fn parts(&self) -> (Arc<Worker>, Arc<Peer>) {
        let place = place(&house().unwrap()).unwrap();
        (Arc::clone(&self.worker), self.peer(&place))
    }
}

fn place(house: &House) -> anyhow::Result<Arc<Place>> {
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned()?;
    Ok(Arc::new(Place::new(&Arc::default(), permit, &house.metrics)))
}

fn house() -> anyhow::Result<House> {
    let secret = Secret::new("0123456789abcdef0123456789abcdef")?;
    let semel = Semel::new(MemoryStore::new());
    Ok(House::new(semel, CallerSecrets::new(secret), Metrics::new([])))
}
