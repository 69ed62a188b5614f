//! The life of a server: start, serve, reload, drain, end.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use semel::Semel;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Mutex, oneshot},
    task::JoinHandle,
};

use crate::{
    api::{self, ApiState},
    config::{Api, Config, Limits, Route, SecretSource, StoreUrl, audit_beside},
    gateway::{self, CutOff, House, Reloader, Running},
    ops::{HeldCount, Watch, audit::Audit, metrics::Metrics, seldom::Seldom},
    route_identity::{self, Acceptor},
    store::{self, OpenStore},
};

/// Reads the configuration again. It may block.
pub(crate) type Load = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// A server that runs: the gateway, and the listener for operators.
pub(crate) struct Server {
    pub(crate) gateway: Running,
    pub(crate) api: Option<ApiServer>,
    reload: Arc<Reload>,
    drain: Duration,
    _held: HeldCount,
}

/// The listener for operators.
pub(crate) struct ApiServer {
    pub(crate) address: std::net::SocketAddr,
    draining: Arc<AtomicBool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Starts everything that a configuration asks for. To be called in a runtime. `acceptor` accepts
/// that records are lost because routes have changed.
pub(crate) async fn start(
    mut config: Config,
    load: Load,
    acceptor: Option<Acceptor>,
) -> anyhow::Result<Server> {
    let OpenStore { store, secrets, created_at } = store::open(&config).await?;
    let acceptance = acceptor.map(|acceptor| acceptor.on(audit_of(&config)));
    let routes = route_identity::check(&mut config, &store, acceptance.as_ref()).await?;
    let operators = match &config.api {
        Some(api) => Some((listen(api).await?, api.clone())),
        None => None,
    };
    let metrics = Metrics::new(scopes(&config));
    metrics.set_store_created(created_at);
    let limits = &config.limits;
    let semel = Semel::builder_on(store)
        .in_flight_max(limits.in_flight)
        .per_caller_max(limits.per_caller)
        .waiting_max(limits.waiting)
        .cache_bytes_max(limits.cache_bytes)
        .sweep_every(config.sweep_every)
        .node(&rustix::system::uname().nodename().to_string_lossy())
        .observer(Watch::new(Arc::clone(&metrics)))
        .build();
    semel.keep_house();
    let held = HeldCount::start(semel.clone(), Arc::clone(&metrics));
    let house = House::new(semel, secrets, metrics);
    let gateway = gateway::start(&config, &house)?;
    routes.remember(house.semel.store()).await?;
    let drain = config.gateway.drain;
    let reload = Arc::new(Reload {
        load,
        started: config,
        reloader: gateway.reloader(),
        house: house.clone(),
        turn: Mutex::default(),
    });
    let start = |(listener, api)| start_api(listener, &api, &house, &reload);
    let api = operators.map(start).transpose()?;
    Ok(Server { gateway, api, reload, drain, _held: held })
}

async fn listen(api: &Api) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(api.listen).await;
    listener.with_context(|| format!("cannot listen on {}", api.listen))
}

fn start_api(
    listener: TcpListener,
    api: &Api,
    house: &House,
    reload: &Arc<Reload>,
) -> anyhow::Result<ApiServer> {
    let address = listener.local_addr()?;
    let draining = Arc::new(AtomicBool::new(false));
    let reload = Arc::clone(reload);
    let (token, audit) = (store::operator_token(api)?, Audit::at(&api.audit));
    match (&token, &reload.started.store) {
        (Some(_), _) => audit.make()?,
        // Nobody acts here, but somebody may act on the store itself, and it is best made by now.
        (None, StoreUrl::Sqlite(_)) => drop(audit.make()),
        (None, StoreUrl::Postgres(_) | StoreUrl::Memory) => {}
    }
    let state = ApiState {
        semel: house.semel.clone(),
        metrics: Arc::clone(&house.metrics),
        token,
        audit,
        reload: Arc::new(move |acceptor| {
            let reload = Arc::clone(&reload);
            Box::pin(async move { reload.run(acceptor).await })
        }),
        draining: Arc::clone(&draining),
        intruders: Seldom::new(),
    };
    let (stop, stopped) = oneshot::channel();
    let stopped = async move { drop(stopped.await) };
    let task = tokio::spawn(api::serve(listener, state, stopped));
    Ok(ApiServer { address, draining, stop, task })
}

/// Where acts are written down.
fn audit_of(config: &Config) -> Audit {
    let configured = config.api.as_ref().map(|api| api.audit.clone());
    Audit::at(configured.unwrap_or_else(|| audit_beside(&config.store)))
}

fn scopes(config: &Config) -> Vec<semel::core::Scope> {
    let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
    guards.map(|guard| guard.scope.clone()).collect()
}

impl Server {
    /// Serves until a signal says to stop, then lets everything come to its end.
    pub(crate) async fn run(self, mut signals: Signals) -> anyhow::Result<ExitCode> {
        while let Told::Reload = signals.next().await {
            match self.reload.run(None).await {
                Ok(done) => tracing::info!("{done}"),
                Err(error) => {
                    tracing::error!("the old configuration goes on:");
                    // A report has many lines, and a line of the log is one.
                    error.lines().for_each(|line| tracing::error!("{line}"));
                }
            }
        }
        let patience = self.drain;
        tracing::info!(patience_s = patience.as_secs(), "stopping: finishing what runs");
        let cut_off = tokio::select! {
            cut_off = self.stop(patience) => cut_off,
            // Whoever asks twice does not want to wait.
            () = signals.stop() => return Ok(ExitCode::FAILURE),
        };
        if !cut_off.is_nothing() {
            let CutOff { operations, connections } = cut_off;
            tracing::error!(
                operations,
                connections,
                "cut off what still ran; the outcome of operations is unknown until leases end"
            );
            return Ok(ExitCode::FAILURE);
        }
        tracing::info!("stopped: nothing was left running");
        Ok(ExitCode::SUCCESS)
    }

    /// Stops, and says what was still running after `patience`.
    pub(crate) async fn stop(self, patience: Duration) -> CutOff {
        if let Some(api) = &self.api {
            api.draining.store(true, Ordering::Relaxed);
        }
        let cut_off = self.gateway.stop(patience).await;
        if let Some(api) = self.api {
            let _ = api.stop.send(());
            let _ = api.task.await;
        }
        cut_off
    }
}

/// What is needed to apply a changed configuration.
struct Reload {
    load: Load,
    /// What the server was started with: what needs a restart goes by it until then.
    started: Config,
    reloader: Reloader,
    house: House,
    /// One at a time, whoever asks for it.
    turn: Mutex<()>,
}

impl Reload {
    /// Applies the configuration as it is now, or says what is wrong with it: then the old one
    /// goes on. `acceptor` accepts that records are lost because routes have changed.
    async fn run(&self, acceptor: Option<Acceptor>) -> Result<String, String> {
        let _turn = self.turn.lock().await;
        let load = Arc::clone(&self.load);
        let loaded = tokio::task::spawn_blocking(move || load()).await;
        let mut config = loaded.map_err(|panicked| panicked.to_string())??;
        self.refuse_strangers(&config)?;
        let said = |error: anyhow::Error| format!("{error:#}");
        let store = self.house.semel.store();
        let acceptance = acceptor.map(|acceptor| acceptor.on(audit_of(&self.started)));
        let routes = route_identity::check(&mut config, store, acceptance.as_ref()).await;
        let routes = routes.map_err(said)?;
        self.house.metrics.add_scopes(scopes(&config));
        self.reloader.reload(&config).map_err(said)?;
        if let Err(error) = routes.remember(store).await {
            tracing::error!("the changed routes are not remembered: {error:#}");
        }
        let waits = needs_restart(&self.started, &config);
        if waits.is_empty() {
            return Ok("the configuration was applied".to_owned());
        }
        Ok(format!(
            "the configuration was applied, but for what needs a restart: {}",
            waits.join(", ")
        ))
    }
}

impl Reload {
    /// Without a secret of its own this server would give callers other names than its neighbours
    /// on the same store do, and their keys would run again.
    fn refuse_strangers(&self, config: &Config) -> Result<(), String> {
        let started = &self.started;
        let shared = matches!(started.store, StoreUrl::Postgres(_));
        if shared
            && started.secret == SecretSource::BesideStore
            && config.routes.iter().any(Route::hashes_callers)
        {
            return Err("callers are told by a credential now, and this server was started \
                        without a secret for that: restart it"
                .to_owned());
        }
        Ok(())
    }
}

/// The settings that have changed and are read at the start only.
fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let api = |config: &Config| config.api.as_ref().map(|api| (api.listen, api.audit.clone()));
    let token = |config: &Config| {
        let token = |api: &Api| (api.operator_token.clone(), api.operator_token_file.clone());
        config.api.as_ref().map(token)
    };
    let changed = [
        ("store", old.store != new.store),
        ("store_id", old.store_id != new.store_id),
        ("cache", old.cache != new.cache),
        ("secret", old.secret != new.secret || old.secret_before != new.secret_before),
        ("sweep_every", old.sweep_every != new.sweep_every),
        ("gateway.listen", old.gateway.listen != new.gateway.listen),
        ("gateway.tls", old.gateway.tls.is_some() != new.gateway.tls.is_some()),
        ("gateway.threads", old.gateway.threads != new.gateway.threads),
        ("gateway.drain", old.gateway.drain != new.gateway.drain),
        ("api", api(old) != api(new) || token(old) != token(new)),
        ("limits", fixed_limits(old) != fixed_limits(new)),
    ];
    changed.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}

/// The limits but for those that each request is held against.
fn fixed_limits(config: &Config) -> Limits {
    let Limits { body_timeout, headers, .. } = Limits::default();
    Limits { body_timeout, headers, ..config.limits }
}

/// What a signal says.
enum Told {
    Reload,
    Stop,
}

/// What the system says to a process. Taken before anything is served, so that nothing is said in
/// vain.
pub(crate) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// To be called in a runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            hangup: take(SignalKind::hangup())?,
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.hangup.recv() => Told::Reload,
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
        }
    }

    async fn stop(&mut self) {
        while !matches!(self.next().await, Told::Stop) {}
    }
}
