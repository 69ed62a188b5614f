//! The lifecycle of a server: start, serve, reload, drain, shut down.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use semel::Semel;
use semel_tower::MemoryBudget;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::{Mutex, oneshot, watch},
    task::JoinHandle,
};

use crate::{
    route_identity::{self, Approval},
    store::{self, OpenStore},
};
use semel_admin::{
    ApiState, ClaimRules, ClaimSeal, ServiceState,
    audit::{Approver, AuditLog},
};
use semel_config::{Api, Config, Limits, StoreUrl, audit_beside, lacks_shared_caller_secret};
use semel_gateway::{CallerSecrets, DrainReport, GatewayContext, GatewayHandle, Reloader};
use semel_telemetry::{EngineObserver, HeldCount, log_throttle::LogThrottle, metrics::Metrics};

/// Loads the configuration again. It may block.
pub(crate) type LoadConfig = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// A running server: the gateway, the API listener, or both.
pub(crate) struct Server {
    /// `None` if there is no upstream.
    pub(crate) gateway: Option<GatewayHandle>,
    pub(crate) api: Option<ApiServer>,
    reload: Arc<ConfigReloader>,
    drain: Duration,
    _held: HeldCount,
}

/// The API listener.
pub(crate) struct ApiServer {
    pub(crate) address: std::net::SocketAddr,
    draining: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Logs settings that are likely to do harm.
fn log_warnings(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
}

/// Starts everything that a configuration needs. Must be called in a runtime. `approver` accepts
/// that records are lost because routes have changed.
pub(crate) async fn start(
    mut config: Config,
    load: LoadConfig,
    approver: Option<Approver>,
) -> anyhow::Result<Server> {
    let OpenStore { store, secrets, dropped_secrets, secrets_to_note, created_at } =
        store::open(&config).await?;
    let approval = approver.map(|approver| Approval::new(approver, audit_of(&config)));
    let approval = approval.as_ref();
    let routes = route_identity::check(&mut config, &store, &dropped_secrets, approval).await?;
    log_warnings(&config);
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
        .quotas(limits.quotas())
        .sweep_every(config.sweep_every)
        .node(&rustix::system::uname().nodename().to_string_lossy())
        .observer(EngineObserver::new(Arc::clone(&metrics)))
        .build();
    semel.start_maintenance();
    let held = HeldCount::start(semel.clone(), Arc::clone(&metrics));
    let memory = MemoryBudget::new(config.limits.memory);
    metrics.set_memory(memory.clone());
    let context = GatewayContext::new(semel, secrets, metrics, memory);
    let remember = async {
        secrets_to_note.note(context.semel.store()).await?;
        routes.remember(context.semel.store()).await
    };
    let gateway = match config.gateway.upstream {
        Some(_) => Some(semel_gateway::start(&config, &context, remember).await?),
        None => {
            remember.await?;
            None
        }
    };
    let drain = config.gateway.drain;
    let claim_rules = Arc::new(ClaimRules::new(&config));
    let reload = Arc::new(ConfigReloader {
        load,
        started: config,
        reloader: gateway.as_ref().map(GatewayHandle::reloader),
        context: context.clone(),
        claim_rules,
        reload_lock: Mutex::default(),
    });
    let start = |(listener, api)| start_api(listener, &api, &context, &reload);
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
    context: &GatewayContext,
    reload: &Arc<ConfigReloader>,
) -> anyhow::Result<ApiServer> {
    let address = listener.local_addr()?;
    let (draining, is_draining) = watch::channel(false);
    let reload = Arc::clone(reload);
    let (tokens, audit) = (store::api_tokens(api)?, AuditLog::at(&api.audit));
    match (tokens.can_change(), &reload.started.store) {
        (true, _) => audit.create()?,
        // Without a token nothing writes here, but `semel --store` may. The server creates the
        // file, so that it can write to it later.
        (false, StoreUrl::Sqlite(_)) => drop(audit.create()),
        (false, StoreUrl::Postgres(_) | StoreUrl::Memory) => {}
    }
    let service = ServiceState::new(claim_seal(&context.secrets)?, Arc::clone(&reload.claim_rules));
    let state = ApiState {
        semel: context.semel.clone(),
        metrics: Arc::clone(&context.metrics),
        tokens,
        service,
        audit,
        reload: Arc::new(move |approver| {
            let reload = Arc::clone(&reload);
            Box::pin(async move { reload.run(approver).await })
        }),
        draining: is_draining,
        auth_failures: LogThrottle::default(),
    };
    let (stop, stopped) = oneshot::channel();
    let stopped = async move { drop(stopped.await) };
    let task = tokio::spawn(semel_admin::serve(listener, state, api.threads, stopped));
    Ok(ApiServer { address, draining, stop, task })
}

/// What the keys are for that seal claims.
const CLAIM_SEAL: &str = "service API claims";

fn claim_seal(secrets: &CallerSecrets) -> anyhow::Result<ClaimSeal> {
    let current = secrets.current.derive_key(CLAIM_SEAL);
    let former = secrets.former.as_ref().map(|former| former.secret.derive_key(CLAIM_SEAL));
    ClaimSeal::new(&current, former.as_ref()).context("the key for claims cannot be used")
}

/// The audit log of a configuration.
fn audit_of(config: &Config) -> AuditLog {
    let configured = config.api.as_ref().map(|api| api.audit.clone());
    AuditLog::at(configured.unwrap_or_else(|| audit_beside(&config.store)))
}

fn scopes(config: &Config) -> Vec<semel::core::Scope> {
    let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
    let tokens = config.api.iter().flat_map(|api| &api.tokens);
    let of_tokens = tokens.flat_map(|token| token.scopes.iter().flatten());
    let of_claims = config.scopes.iter().map(|rule| &rule.name).chain(of_tokens);
    guards.map(|guard| &guard.scope).chain(of_claims).cloned().collect()
}

impl Server {
    /// Serves until a stop signal; a hang-up signal reloads the configuration.
    pub(crate) async fn wait(&self, signals: &mut Signals) {
        while let ControlSignal::ConfigReloader = signals.next().await {
            match self.reload.run(None).await {
                Ok(done) => tracing::info!("{done}"),
                Err(error) => {
                    tracing::error!("reload failed; keeping the previous configuration:");
                    // A report has several lines; each becomes one log line.
                    error.lines().for_each(|line| tracing::error!("{line}"));
                }
            }
        }
    }

    /// Finishes what runs, and stops. A second stop signal aborts this.
    pub(crate) async fn drain(self, signals: &mut Signals) -> ExitCode {
        let timeout = self.drain;
        tracing::info!(timeout_s = timeout.as_secs(), "shutting down: draining in-flight requests");
        let cut_off = tokio::select! {
            cut_off = self.stop(timeout) => cut_off,
            () = signals.stop() => return ExitCode::FAILURE,
        };
        if !cut_off.is_clean() {
            let DrainReport { operations, connections } = cut_off;
            tracing::error!(
                operations,
                connections,
                "cut off at the drain timeout; the outcome of these operations is unknown until \
                 their \
                 leases expire"
            );
            return ExitCode::FAILURE;
        }
        tracing::info!("stopped: all requests were finished");
        ExitCode::SUCCESS
    }

    /// Stops, and returns what was still running after `timeout`.
    pub(crate) async fn stop(self, timeout: Duration) -> DrainReport {
        if let Some(api) = &self.api {
            let _ = api.draining.send(true);
        }
        let cut_off = match self.gateway {
            Some(gateway) => gateway.shutdown(timeout).await,
            None => DrainReport::default(),
        };
        if let Some(api) = self.api {
            let _ = api.stop.send(());
            let _ = api.task.await;
        }
        cut_off
    }
}

/// Applies a changed configuration.
struct ConfigReloader {
    load: LoadConfig,
    /// The configuration at start: it stays in force for settings that need a restart.
    started: Config,
    /// `None` if there is no gateway.
    reloader: Option<Reloader>,
    context: GatewayContext,
    claim_rules: Arc<ClaimRules>,
    /// Serializes reloads.
    reload_lock: Mutex<()>,
}

impl ConfigReloader {
    /// Loads and applies the configuration. On an error the previous one stays in force. `approver`
    /// accepts that records are lost because routes have changed.
    async fn run(&self, approver: Option<Approver>) -> Result<String, String> {
        let _turn = self.reload_lock.lock().await;
        let load = Arc::clone(&self.load);
        let loaded = tokio::task::spawn_blocking(move || load()).await;
        let mut config = loaded.map_err(|panicked| panicked.to_string())??;
        let Config { store, secret, .. } = &self.started;
        if lacks_shared_caller_secret(store, secret, config.api.as_ref(), &config.routes) {
            return Err(
                "routes now identify callers by a credential, or claims are now allowed, and this \
                 server was started without a secret for that: restart it"
                    .to_owned(),
            );
        }
        let text = |error: anyhow::Error| format!("{error:#}");
        let store = self.context.semel.store();
        let approval = approver.map(|approver| Approval::new(approver, audit_of(&self.started)));
        if self.reloader.is_some() != config.gateway.upstream.is_some() {
            return Err("an upstream was added or removed: restart this server".to_owned());
        }
        let routes = route_identity::check(&mut config, store, &[], approval.as_ref()).await;
        let routes = routes.map_err(text)?;
        log_warnings(&config);
        let prepared = self.reloader.as_ref().map(|reloader| reloader.prepare(&config));
        let prepared = prepared.transpose().map_err(text)?;
        routes.remember(store).await.map_err(text)?;
        self.context.metrics.add_scopes(scopes(&config));
        if let Some(prepared) = prepared {
            prepared.apply().map_err(text)?;
        }
        self.claim_rules.set(&config);
        let pending = restart_required(&self.started, &config);
        if pending.is_empty() {
            return Ok("the configuration was applied".to_owned());
        }
        Ok(format!(
            "the configuration was applied, except for settings that need a restart: {}",
            pending.join(", ")
        ))
    }
}

/// Changed settings that are only read at start.
fn restart_required(old: &Config, new: &Config) -> Vec<&'static str> {
    let api = |config: &Config| {
        let fixed = |api: &Api| (api.listen, api.threads, api.audit.clone());
        config.api.as_ref().map(fixed)
    };
    let token = |config: &Config| {
        let token = |api: &Api| {
            let file = api.operator_token_file.clone();
            (api.operator_token.clone(), file, api.tokens.clone())
        };
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

/// The limits that are only read at start.
fn fixed_limits(config: &Config) -> Limits {
    let Limits { body_timeout, headers, .. } = Limits::default();
    Limits { body_timeout, headers, ..config.limits }
}

/// A request from a signal.
enum ControlSignal {
    ConfigReloader,
    Stop,
}

/// The signals of the process. Registered before serving, so that no signal is missed.
pub(crate) struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Must be called in a runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            hangup: take(SignalKind::hangup())?,
            terminate: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> ControlSignal {
        tokio::select! {
            _ = self.hangup.recv() => ControlSignal::ConfigReloader,
            _ = self.terminate.recv() => ControlSignal::Stop,
            _ = self.interrupt.recv() => ControlSignal::Stop,
        }
    }

    async fn stop(&mut self) {
        while !matches!(self.next().await, ControlSignal::Stop) {}
    }
}
