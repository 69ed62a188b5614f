//! The gateway for a fuzz target. It serves connections without a socket, one after the other, each
//! with an empty store.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use semel::{MemoryStore, Semel};
use semel_tower::{MemoryBudget, Secret};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::CallerSecrets;
use crate::GatewayContext;
use crate::connections::{ConnectionPermit, Connections};
use crate::listen::connection;
use crate::listen::worker_state::WorkerState;
use crate::peer::ClientPeer;
use crate::route::caller_verifiers::CallerVerifiers;
use crate::route::table::RouteTable;
use crate::route::webhook_verifiers::WebhookVerifiers;
use crate::shutdown::ShutdownTrigger;
use semel_config::{Config, Overrides};
use semel_telemetry::metrics::Metrics;

/// A gateway without a listener.
#[derive(Debug)]
pub struct FuzzGateway {
    config: Config,
    worker: Arc<WorkerState>,
    _shutdown_trigger: ShutdownTrigger,
}

impl FuzzGateway {
    /// A gateway in front of this upstream. Its route requires a key for POST.
    ///
    /// # Errors
    ///
    /// If its built-in configuration is invalid.
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
        let (shutdown_trigger, shutdown) = ShutdownTrigger::new();
        let verifiers = WebhookVerifiers::new(&config)?;
        let worker = crate::new_worker(&config, &context()?, &verifiers, &shutdown)?;
        Ok(Self { config, worker, _shutdown_trigger: shutdown_trigger })
    }

    /// Serves one connection to its end on a new store, and waits for the operations that it
    /// started.
    ///
    /// # Errors
    ///
    /// If an operation does not end.
    pub async fn serve<T>(&self, io: T, http2: bool) -> anyhow::Result<()>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let context = context()?;
        let verifiers = WebhookVerifiers::new(&self.config)?;
        let route_table = RouteTable::new(
            &self.config,
            &context,
            &verifiers,
            &CallerVerifiers::default(),
            &self.worker.pools,
        )?;
        self.worker.route_table.store(Arc::new(route_table));
        let permit = permit(&context)?;
        let peer = self.peer(&permit);
        connection::serve_http(Box::new(io), http2, &peer, &self.worker).await;
        drop(permit);
        let left = context.semel.drain(Duration::from_secs(3600)).await;
        (left == 0).then_some(()).context("an operation did not end")
    }
}

impl FuzzGateway {
    fn peer(&self, permit: &Arc<ConnectionPermit>) -> Arc<ClientPeer> {
        let WorkerState { shutdown, limits, memory, .. } = &*self.worker;
        let address = (Ipv4Addr::LOCALHOST, 1).into();
        Arc::new(ClientPeer::new(
            address,
            false,
            shutdown.clone(),
            permit,
            limits.tunnel_timeout,
            memory,
        ))
    }
}

fn permit(context: &GatewayContext) -> anyhow::Result<Arc<ConnectionPermit>> {
    let permit = Connections::new(1, &context.metrics).try_admit((Ipv4Addr::LOCALHOST, 1).into());
    permit.map(Arc::new).context("no connection permit")
}

fn context() -> anyhow::Result<GatewayContext> {
    let secret = Secret::new("0123456789abcdef0123456789abcdef")?;
    let semel = Semel::new(MemoryStore::new());
    let memory = MemoryBudget::new(64 << 20);
    Ok(GatewayContext::new(semel, CallerSecrets::new(secret), Metrics::new([]), memory))
}
