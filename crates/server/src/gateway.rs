//! The gateway: a reverse proxy in which every guarded request runs once.
//!
//! It has no engine of its own: a route is the layer of `semel-tower` around [`forward`], and this
//! module is what stands around that. One request, in files: [`listen`] accepts a connection and
//! gives it to a [`worker`], [`connection`] speaks HTTP on it, [`site`] finds the route, the layer
//! does its work, [`forward`] sends to the upstream on a connection of the [`pool`].

mod alarm;
mod body;
mod check;
mod connect;
mod connection;
mod date;
mod error;
mod forward;
pub(crate) mod fuzzing;
mod headers;
mod http1;
mod listen;
mod peer;
mod pool;
mod pools;
mod refuse;
mod send;
mod shared;
mod site;
mod stop;
mod tls;
mod unmatched;
mod upgrade;
mod verify;
mod wire;
mod worker;

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use semel::Semel;
use tokio::{
    sync::Semaphore,
    task,
    time::{Instant, interval, sleep, timeout_at},
};

use self::{
    date::Date,
    listen::Door,
    pools::Pools,
    site::Site,
    stop::{Phase, Stop, Stopper},
    tls::Certificate,
    verify::Verifiers,
    worker::Worker,
};
use crate::{
    config::Config,
    ops::{metrics::Metrics, seldom::Seldom},
    store::CallerSecrets,
};

/// How long clients have to notice, by an answer that says so, that a connection is about to end.
const NOTICE: Duration = Duration::from_millis(500);

/// How often the files of the certificate are looked at.
const CERTIFICATE_EVERY: Duration = Duration::from_secs(2);

/// A gateway that runs.
#[derive(Debug)]
pub(crate) struct Running {
    addresses: Vec<SocketAddr>,
    workers: Vec<Arc<Worker>>,
    threads: Vec<JoinHandle<()>>,
    acceptors: Vec<task::JoinHandle<()>>,
    certificate: Option<Arc<Certificate>>,
    places: Arc<Semaphore>,
    places_max: u32,
    stopper: Stopper,
    house: House,
}

/// What a gateway works with.
#[derive(Clone, Debug)]
pub(crate) struct House {
    pub(crate) semel: Semel,
    pub(crate) secrets: CallerSecrets,
    pub(crate) metrics: Arc<Metrics>,
    /// Names requests that carry a key and match no route.
    unmatched: Arc<Seldom>,
}

impl House {
    pub(crate) fn new(semel: Semel, secrets: CallerSecrets, metrics: Arc<Metrics>) -> Self {
        let unmatched = Arc::new(Seldom::every(unmatched::LOG_EVERY));
        Self { semel, secrets, metrics, unmatched }
    }
}

/// Changes the configuration of a gateway that runs.
#[derive(Clone, Debug)]
pub(crate) struct Reloader {
    workers: Vec<Arc<Worker>>,
    certificate: Option<Arc<Certificate>>,
    house: House,
}

/// What was still there when the patience of a stop had run out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CutOff {
    /// Guarded operations, whose outcome is unknown now.
    pub(crate) operations: usize,
    /// Connections of clients, with whatever went on there.
    pub(crate) connections: u32,
}

impl CutOff {
    /// Whether everything came to its end by itself.
    pub(crate) const fn is_nothing(self) -> bool {
        self.operations == 0 && self.connections == 0
    }
}

/// Starts a gateway. To be called in a runtime, which accepts connections; threads of the gateway's
/// own serve them.
pub(crate) fn start(config: &Config, house: &House) -> anyhow::Result<Running> {
    let (stopper, stop) = Stopper::new();
    let certificate = config.gateway.tls.as_ref().map(Certificate::read).transpose()?;
    let acceptor = certificate.as_ref().map(Certificate::acceptor).transpose()?;
    let verifiers = Verifiers::new(config)?;
    let workers = (0..config.gateway.threads)
        .map(|_| worker(config, house, &verifiers, &stop))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let listeners = config.gateway.listen.iter().map(|address| {
        listen::bind(*address).with_context(|| format!("cannot listen on {address}"))
    });
    let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
    let addresses = listeners.iter().map(tokio::net::TcpListener::local_addr);
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    let mut hands = Vec::new();
    let mut threads = Vec::new();
    for (index, worker) in workers.iter().enumerate() {
        let started = worker::start(format!("gateway-{index}"), Arc::clone(worker));
        let (hand, thread) = started.context("cannot start a thread")?;
        hands.push(hand);
        threads.push(thread);
    }
    let places_max = u32::try_from(config.limits.connections).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(config.limits.connections));
    let accept = |listener| {
        let door = Door {
            tls: acceptor.clone(),
            hands: hands.clone(),
            places: Arc::clone(&places),
            metrics: Arc::clone(&house.metrics),
        };
        task::spawn(listen::accept(listener, door, stop.clone()))
    };
    let acceptors = listeners.into_iter().map(accept).collect();
    if let Some(certificate) = &certificate {
        task::spawn(watch_certificate(Arc::clone(certificate), stop.clone()));
    }
    Ok(Running {
        addresses,
        workers,
        threads,
        acceptors,
        certificate,
        places,
        places_max,
        stopper,
        house: house.clone(),
    })
}

fn worker(
    config: &Config,
    house: &House,
    verifiers: &Verifiers,
    stop: &Stop,
) -> anyhow::Result<Arc<Worker>> {
    let pools = Pools::default();
    let site = ArcSwap::from_pointee(Site::new(config, house, verifiers, &pools)?);
    let (limits, stop, date) = (config.limits, stop.clone(), Date::new());
    Ok(Arc::new(Worker { site, pools, limits, stop, date }))
}

async fn watch_certificate(certificate: Arc<Certificate>, mut stop: Stop) {
    let mut period = interval(CERTIFICATE_EVERY);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = stop.reached(Phase::Ended) => return,
        }
        match certificate.refresh() {
            Ok(false) => {}
            Ok(true) => tracing::info!("the certificate has changed and was read again"),
            Err(error) => {
                tracing::error!("the certificate has changed and is of no use: {error:#}")
            }
        }
    }
}

impl Reloader {
    /// Serves by another configuration from the next request on. Either all of it is taken or,
    /// on an error, nothing.
    pub(crate) fn reload(&self, config: &Config) -> anyhow::Result<()> {
        let verifiers = Verifiers::new(config)?;
        let site = |worker: &Arc<Worker>| {
            Site::new(config, &self.house, &verifiers, &worker.pools).map(Arc::new)
        };
        let sites = self.workers.iter().map(site).collect::<anyhow::Result<Vec<_>>>()?;
        if let (Some(certificate), Some(files)) = (&self.certificate, &config.gateway.tls) {
            certificate.replace(files)?;
        }
        for (worker, site) in self.workers.iter().zip(sites) {
            worker.site.store(site);
        }
        Ok(())
    }
}

impl Running {
    /// Where it listens, with the real ports.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Who changes its configuration.
    pub(crate) fn reloader(&self) -> Reloader {
        Reloader {
            workers: self.workers.clone(),
            certificate: self.certificate.clone(),
            house: self.house.clone(),
        }
    }

    /// Stops to accept, lets everything that runs come to its end, at most for `patience`, and says
    /// what had to be cut off then.
    pub(crate) async fn stop(self, patience: Duration) -> CutOff {
        let end = Instant::now() + patience;
        self.stopper.enter(Phase::Draining);
        for acceptor in self.acceptors {
            let _ = acceptor.await;
        }
        sleep(NOTICE.min(patience)).await;
        self.stopper.enter(Phase::Closing);
        // All places are free when nobody is connected any more.
        let _ = timeout_at(end, self.places.acquire_many(self.places_max)).await;
        let operations =
            self.house.semel.drain(end.saturating_duration_since(Instant::now())).await;
        let free = u32::try_from(self.places.available_permits()).unwrap_or(u32::MAX);
        let connections = self.places_max.saturating_sub(free);
        self.stopper.enter(Phase::Ended);
        let threads = self.threads;
        // A thread that panicked has said so.
        let join = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = task::spawn_blocking(join).await;
        CutOff { operations, connections }
    }
}
