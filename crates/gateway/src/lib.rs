//! The gateway: a reverse proxy in which every guarded request runs once.
//!
//! It has no engine of its own: a guarded route is the layer of `semel-tower` around `forward`. The
//! folders follow one request: `listen` accepts a connection and reads a request from it, `route`
//! finds the route, the layer guards the request, and `forward` sends the request on a connection
//! of `upstream`.

mod body;
mod connections;
mod error;
mod forward;
pub mod fuzzing;
mod headers;
mod listen;
mod peer;
mod proxies;
mod reconcile;
mod route;
mod shutdown;
mod tls;
mod upstream;

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle, time::Duration};

use anyhow::Context as _;
use arc_swap::ArcSwap;
use tokio::{
    task,
    time::{Instant, interval, sleep, timeout_at},
};

use crate::connections::Connections;
use crate::listen::accept::ConnectionAcceptor;
use crate::listen::date::CachedDate;
use crate::listen::worker_state::WorkerState;
use crate::proxies::TrustedProxies;
pub use crate::reconcile::{ActionFuture, AuditedResolve, ReconcileAction};
use crate::reconcile::{ReconcileContext, ReconcileTask, ReconciledScope};
pub use crate::route::caller_secrets::{CallerSecrets, FormerSecret};
use crate::route::caller_verifiers::CallerVerifiers;
pub use crate::route::caller_verifiers::unverified_callers;
pub use crate::route::context::GatewayContext;
use crate::route::table::RouteTable;
use crate::route::webhook_verifiers::WebhookVerifiers;
use crate::shutdown::{Shutdown, ShutdownPhase, ShutdownTrigger};
use crate::tls::Certificate;
pub use crate::tls::read_client_certificate;
use crate::upstream::pool_map::PoolMap;
use semel_config::{Config, Tls};

/// Time between the first `Connection: close` and the closing of idle connections. A client that
/// gets a response in this time learns that its connection ends.
const DRAIN_NOTICE: Duration = Duration::from_millis(500);

/// Interval between checks of the certificate files for changes.
const CERTIFICATE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Handle to a running gateway.
#[derive(Debug)]
pub struct GatewayHandle {
    addresses: Vec<SocketAddr>,
    workers: Vec<Arc<WorkerState>>,
    threads: Vec<JoinHandle<()>>,
    acceptors: Vec<task::JoinHandle<()>>,
    certificate: Option<Arc<Certificate>>,
    connections: Arc<Connections>,
    shutdown_trigger: ShutdownTrigger,
    context: GatewayContext,
    reconcile: Option<ReconcileTask>,
}

/// Changes the configuration of a running gateway.
#[derive(Clone, Debug)]
pub struct Reloader {
    workers: Vec<Arc<WorkerState>>,
    connections: Arc<Connections>,
    certificate: Option<Arc<Certificate>>,
    context: GatewayContext,
}

/// A configuration that was checked and can be applied.
#[derive(Debug)]
pub struct PreparedConfig<'a> {
    reloader: &'a Reloader,
    route_tables: Vec<Arc<RouteTable>>,
    caller_verifiers: CallerVerifiers,
    reconciled: Vec<ReconciledScope>,
    proxies: TrustedProxies,
    tls: Option<Tls>,
}

/// What was still running at the end of the grace period.
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainReport {
    /// Guarded operations that were cut off. Their outcome is unknown.
    pub operations: usize,
    /// Client connections that were cut off.
    pub connections: u32,
}

impl DrainReport {
    /// Whether nothing was cut off.
    pub const fn is_clean(self) -> bool {
        self.operations == 0 && self.connections == 0
    }
}

/// Starts a gateway. The calling runtime accepts connections; worker threads of the gateway serve
/// them. The gateway binds all addresses, awaits `before_accepting`, and accepts connections only
/// after that.
pub async fn start(
    config: &Config,
    context: &GatewayContext,
    before_accepting: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<GatewayHandle> {
    let (shutdown_trigger, shutdown) = ShutdownTrigger::new();
    let certificate = config
        .gateway
        .tls
        .as_ref()
        .map(|files| Certificate::read(files, &context.metrics))
        .transpose()?;
    let verifiers = WebhookVerifiers::new(config)?;
    context.set_caller_verifiers(CallerVerifiers::new(config, &CallerVerifiers::default())?);
    let workers = (0..config.gateway.threads)
        .map(|_| new_worker(config, context, &verifiers, &shutdown))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let listeners = config.gateway.listen.iter().map(|address| {
        listen::accept::bind(*address).with_context(|| format!("cannot listen on {address}"))
    });
    let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
    let addresses = listeners.iter().map(tokio::net::TcpListener::local_addr);
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    context.reconciled.set(context.reconciled.prepare(config)?);
    before_accepting.await?;
    let reconcile = context.audited_resolve.clone().map(|resolve| {
        ReconcileTask::start(ReconcileContext {
            store: Arc::clone(context.semel.store()),
            metrics: Arc::clone(&context.metrics),
            resolve,
            reads: Arc::clone(&context.held_reads),
            scopes: Arc::clone(&context.reconciled),
        })
    });
    let mut handles = Vec::new();
    let mut threads = Vec::new();
    for (index, worker) in workers.iter().enumerate() {
        let started = listen::worker::start(format!("gateway-{index}"), Arc::clone(worker));
        let (handle, thread) = started.context("cannot start a thread")?;
        handles.push(handle);
        threads.push(thread);
    }
    let connections = Connections::new(config.limits.connections, &context.metrics);
    connections.set_proxies(TrustedProxies::new(&config.gateway));
    let accept = |listener| {
        let acceptor = ConnectionAcceptor {
            tls: certificate.clone(),
            workers: handles.clone(),
            connections: Arc::clone(&connections),
        };
        task::spawn(listen::accept::accept(listener, acceptor, shutdown.clone()))
    };
    let acceptors = listeners.into_iter().map(accept).collect();
    if let Some(certificate) = &certificate {
        task::spawn(watch_certificate(Arc::clone(certificate), shutdown.clone()));
    }
    Ok(GatewayHandle {
        addresses,
        workers,
        threads,
        acceptors,
        certificate,
        connections,
        shutdown_trigger,
        context: context.clone(),
        reconcile,
    })
}

fn new_worker(
    config: &Config,
    context: &GatewayContext,
    verifiers: &WebhookVerifiers,
    shutdown: &Shutdown,
) -> anyhow::Result<Arc<WorkerState>> {
    let pools = PoolMap::default();
    let callers = context.caller_verifiers.load();
    let route_table = RouteTable::new(config, context, verifiers, &callers, &pools)?;
    let route_table = ArcSwap::from_pointee(route_table);
    let (limits, shutdown, date) = (config.limits, shutdown.clone(), CachedDate::new());
    let (memory, metrics) = (context.memory.clone(), Arc::clone(&context.metrics));
    Ok(Arc::new(WorkerState { route_table, pools, limits, shutdown, date, memory, metrics }))
}

async fn watch_certificate(certificate: Arc<Certificate>, mut shutdown: Shutdown) {
    let mut period = interval(CERTIFICATE_CHECK_INTERVAL);
    loop {
        tokio::select! {
            _ = period.tick() => {}
            () = shutdown.wait_for(ShutdownPhase::Ended) => return,
        }
        match certificate.refresh() {
            Ok(false) => {}
            Ok(true) => tracing::info!("reloaded the changed certificate"),
            Err(error) => {
                tracing::error!(
                    "cannot use the changed certificate; keeping the old one: {error:#}"
                )
            }
        }
    }
}

impl Reloader {
    /// Builds everything that a new configuration needs. Nothing changes before
    /// [`PreparedConfig::apply`].
    pub fn prepare(&self, config: &Config) -> anyhow::Result<PreparedConfig<'_>> {
        let verifiers = WebhookVerifiers::new(config)?;
        let callers = CallerVerifiers::new(config, &self.context.caller_verifiers.load())?;
        let route_table = |worker: &Arc<WorkerState>| {
            RouteTable::new(config, &self.context, &verifiers, &callers, &worker.pools)
                .map(Arc::new)
        };
        let route_tables =
            self.workers.iter().map(route_table).collect::<anyhow::Result<Vec<_>>>()?;
        let tls = self.certificate.as_ref().and(config.gateway.tls.clone());
        tls.as_ref().map(Certificate::check).transpose()?;
        let proxies = TrustedProxies::new(&config.gateway);
        let reconciled = self.context.reconciled.prepare(config)?;
        let (reloader, caller_verifiers) = (self, callers);
        Ok(PreparedConfig { reloader, route_tables, caller_verifiers, reconciled, proxies, tls })
    }
}

impl PreparedConfig<'_> {
    /// Applies the configuration from the next request on. On an error, nothing of it is applied.
    pub fn apply(self) -> anyhow::Result<()> {
        let Self { reloader, route_tables, caller_verifiers, reconciled, proxies, tls } = self;
        if let (Some(certificate), Some(files)) = (&reloader.certificate, &tls) {
            certificate.replace(files)?;
        }
        reloader.context.set_caller_verifiers(caller_verifiers);
        reloader.context.reconciled.set(reconciled);
        for (worker, route_table) in reloader.workers.iter().zip(route_tables) {
            worker.route_table.store(route_table);
        }
        reloader.connections.set_proxies(proxies);
        Ok(())
    }
}

impl GatewayHandle {
    /// Listening addresses, with the assigned ports.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns a handle that changes the configuration.
    pub fn reloader(&self) -> Reloader {
        Reloader {
            workers: self.workers.clone(),
            connections: Arc::clone(&self.connections),
            certificate: self.certificate.clone(),
            context: self.context.clone(),
        }
    }

    /// Stops accepting, waits up to `grace` for running work, and reports what was cut off after
    /// that.
    pub async fn shutdown(self, grace: Duration) -> DrainReport {
        let end = Instant::now() + grace;
        self.shutdown_trigger.enter(ShutdownPhase::Draining);
        for acceptor in self.acceptors {
            let _ = acceptor.await;
        }
        if let Some(reconcile) = self.reconcile {
            reconcile.stop().await;
        }
        sleep(DRAIN_NOTICE.min(grace)).await;
        self.shutdown_trigger.enter(ShutdownPhase::Closing);
        let _ = timeout_at(end, self.connections.wait_all_closed()).await;
        let operations =
            self.context.semel.drain(end.saturating_duration_since(Instant::now())).await;
        let connections = u32::try_from(self.connections.count()).unwrap_or(u32::MAX);
        self.shutdown_trigger.enter(ShutdownPhase::Ended);
        let threads = self.threads;
        // The panic hook has already logged a panic.
        let join = move || threads.into_iter().for_each(|thread| drop(thread.join()));
        let _ = task::spawn_blocking(join).await;
        DrainReport { operations, connections }
    }
}
