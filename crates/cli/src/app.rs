//! The lifecycle of a server: start, serve, reload, drain, shut down.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use semel::{
    Semel,
    core::{Resolved, StateName, Store, StoreError},
};
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
    ApiState, ClaimRules, ClaimSeal, ConfigSummary, Dashboard, ServiceState,
    audit::{AnswerDigest, Approver, AuditLog, AuditResult, OperatorAction},
};
use semel_config::{
    Api, Config, StoreUrl, TrustedHeader, default_audit_path, lacks_shared_caller_secret,
};
use semel_gateway::{
    ActionFuture, AuditedResolve, CallerSecrets, DrainReport, GatewayContext, GatewayHandle,
    ReconcileAction, Reloader,
};
use semel_telemetry::{
    EngineObserver, HeldRecordCounter, log::DroppedLines, log_throttle::LogThrottle,
    metrics::Metrics,
};

/// Loads the configuration again. It may block.
pub(crate) type LoadConfig = Arc<dyn Fn() -> Result<Config, String> + Send + Sync>;

/// A running server: the gateway, the API listener, or both.
pub(crate) struct Server {
    /// `None` if there is no upstream.
    pub(crate) gateway: Option<GatewayHandle>,
    pub(crate) api: Option<ApiServer>,
    reload: Arc<ConfigReloader>,
    drain: Duration,
    _held_record_counter: HeldRecordCounter,
}

/// The API listener.
pub(crate) struct ApiServer {
    pub(crate) address: std::net::SocketAddr,
    draining: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Logs the warnings about the configuration.
fn log_warnings(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
}

/// Starts everything that a configuration needs. Must be called in a runtime. `approver` approves a
/// change of route identity, after which keys that have run may run again.
pub(crate) async fn start(
    mut config: Config,
    load: LoadConfig,
    approver: Option<Approver>,
) -> anyhow::Result<Server> {
    let OpenStore { store, secrets, dropped_secrets, secret_updates, created_at } =
        store::open(&config).await?;
    let approval = approver.map(|approver| Approval::new(approver, audit_of(&config)));
    let approval = approval.as_ref();
    let routes = route_identity::check(&mut config, &store, &dropped_secrets, approval).await?;
    log_warnings(&config);
    let api_listener = match &config.api {
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
    let held = HeldRecordCounter::start(semel.clone(), Arc::clone(&metrics));
    let memory = MemoryBudget::new(config.limits.memory);
    metrics.set_memory(memory.clone());
    let resolve = audited_resolve(Arc::clone(semel.store()), audit_of(&config));
    let context =
        GatewayContext::new(semel, secrets, metrics, memory).with_audited_resolve(resolve);
    let save_identities = async {
        secret_updates.save(context.semel.store()).await?;
        routes.save(context.semel.store()).await
    };
    let gateway = match config.gateway.upstream {
        Some(_) => Some(semel_gateway::start(&config, &context, save_identities).await?),
        None => {
            save_identities.await?;
            None
        }
    };
    let drain = config.gateway.drain;
    let claim_rules = Arc::new(ClaimRules::new(&config));
    let config_summary = Arc::new(ConfigSummary::new(&config));
    let reload = Arc::new(ConfigReloader {
        load,
        startup_config: config,
        reloader: gateway.as_ref().map(GatewayHandle::reloader),
        context: context.clone(),
        claim_rules,
        config_summary,
        reload_lock: Mutex::default(),
    });
    let start = |(listener, api)| start_api(listener, &api, &context, &reload);
    let api = api_listener.map(start).transpose()?;
    Ok(Server { gateway, api, reload, drain, _held_record_counter: held })
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
    let trusted_header = api.trusted_header.clone();
    let has_operators = trusted_header.as_ref().is_some_and(TrustedHeader::has_operators);
    match (tokens.can_change() || has_operators, &reload.startup_config.store) {
        (true, _) => audit.create()?,
        // Without an operator this server writes no audit log, but `semel --store` may. If
        // that command created the file, the server could not write to it later, so the server
        // creates it.
        (false, StoreUrl::Sqlite(_)) => drop(audit.create()),
        (false, StoreUrl::Postgres(_) | StoreUrl::Memory) => {}
    }
    let tokens = match trusted_header {
        Some(_) => tokens.restricting_records(),
        None => tokens,
    };
    let dashboard = Dashboard::new(Arc::clone(&reload.config_summary), trusted_header)?;
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
        auth_failure_log: LogThrottle::default(),
    };
    let (stop, stopped) = oneshot::channel();
    let stopped = async move { drop(stopped.await) };
    let task = tokio::spawn(semel_admin::serve(listener, state, dashboard, api.threads, stopped));
    Ok(ApiServer { address, draining, stop, task })
}

/// Label for deriving the keys that encrypt claims.
const CLAIM_SEAL_LABEL: &str = "service API claims";

fn claim_seal(secrets: &CallerSecrets) -> anyhow::Result<ClaimSeal> {
    let current = secrets.current.derive_key(CLAIM_SEAL_LABEL);
    let former = secrets.former.as_ref().map(|former| former.secret.derive_key(CLAIM_SEAL_LABEL));
    ClaimSeal::new(&current, former.as_ref()).context("the encryption key for claims is invalid")
}

/// The author of actions that a read of the upstream proved.
const RECONCILE_AUTHOR: &str = "reconcile (by the server)";

/// Resolves a held record as a read of the upstream proved, with its lines in the audit log.
fn audited_resolve(store: Arc<dyn Store>, audit: AuditLog) -> AuditedResolve {
    Arc::new(move |action: ReconcileAction| {
        let (store, audit) = (Arc::clone(&store), audit.clone());
        Box::pin(async move {
            let ReconcileAction { id, seen, resolution, answer, why } = action;
            let to = answer.as_ref().map_or_else(
                || "released".to_owned(),
                |answer| format!("completed with status {}", answer.status),
            );
            let act = OperatorAction {
                who: RECONCILE_AUTHOR.to_owned(),
                act: "reconcile",
                record: Some((id.clone(), StateName::Held, seen)),
                to: Some(to),
                answer: answer.as_ref().map(AnswerDigest::of),
                why,
            };
            let resolved = async { ReconcileResult(store.resolve(&id, seen, &resolution).await) };
            let done = audit.run_logged(act, resolved).await;
            done.map_err(|error| format!("{error:#}"))?.0.map_err(|error| error.to_string())
        }) as ActionFuture
    })
}

/// The result of a resolution, for the audit log.
struct ReconcileResult(Result<Resolved, StoreError>);

impl AuditResult for ReconcileResult {
    fn result(&self) -> String {
        match &self.0 {
            Ok(Resolved::Applied) => "applied".to_owned(),
            Ok(Resolved::Stale) => "failed: the record changed".to_owned(),
            Err(error) => format!("failed: {error}"),
        }
    }
}

/// The audit log of a configuration.
fn audit_of(config: &Config) -> AuditLog {
    let configured = config.api.as_ref().map(|api| api.audit.clone());
    AuditLog::at(configured.unwrap_or_else(|| default_audit_path(&config.store)))
}

fn scopes(config: &Config) -> Vec<semel::core::Scope> {
    let guards = config.routes.iter().filter_map(|route| route.guard.as_ref());
    let tokens = config.api.iter().flat_map(|api| &api.tokens);
    let of_tokens = tokens.flat_map(|token| token.scopes.iter().flatten());
    let of_claims = config.scopes.iter().map(|rule| &rule.name).chain(of_tokens);
    guards.map(|guard| &guard.scope).chain(of_claims).cloned().collect()
}

impl Server {
    /// Shows the dropped log lines of this process in its metrics.
    pub(crate) fn export_dropped_lines(&self, dropped: DroppedLines) {
        self.reload.context.metrics.set_dropped_log_lines(dropped);
    }

    /// Waits for SIGTERM or SIGINT. SIGHUP reloads the configuration.
    pub(crate) async fn run_until_stop(&self, signals: &mut Signals) {
        while let ControlSignal::Reload = signals.next().await {
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

    /// Finishes in-flight requests and stops. A second SIGTERM or SIGINT aborts the drain.
    pub(crate) async fn drain(self, signals: &mut Signals) -> ExitCode {
        let timeout = self.drain;
        tracing::info!(timeout_s = timeout.as_secs(), "shutting down: draining in-flight requests");
        let report = tokio::select! {
            report = self.stop(timeout) => report,
            () = signals.wait_for_stop() => return ExitCode::FAILURE,
        };
        if !report.is_clean() {
            let DrainReport { operations, connections } = report;
            tracing::error!(
                operations,
                connections,
                "drain timeout: requests were cut off, and the outcome of their operations is \
                 unknown; retries get `in-progress` until the leases expire, and then what \
                 `on_unknown` says"
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
        let report = match self.gateway {
            Some(gateway) => gateway.shutdown(timeout).await,
            None => DrainReport::default(),
        };
        if let Some(api) = self.api {
            let _ = api.stop.send(());
            let _ = api.task.await;
        }
        report
    }
}

/// Applies a changed configuration.
struct ConfigReloader {
    load: LoadConfig,
    /// The configuration at start: it stays in force for settings that need a restart.
    startup_config: Config,
    /// `None` if there is no gateway.
    reloader: Option<Reloader>,
    context: GatewayContext,
    claim_rules: Arc<ClaimRules>,
    config_summary: Arc<ConfigSummary>,
    /// Serializes reloads.
    reload_lock: Mutex<()>,
}

impl ConfigReloader {
    /// Loads and applies the configuration. On an error the previous one stays in force. `approver`
    /// approves a change of route identity, after which keys that have run may run again.
    async fn run(&self, approver: Option<Approver>) -> Result<String, String> {
        let _guard = self.reload_lock.lock().await;
        let result = self.reload(approver).await;
        self.context.metrics.config_reloaded(result.is_ok());
        result
    }

    async fn reload(&self, approver: Option<Approver>) -> Result<String, String> {
        let load = Arc::clone(&self.load);
        let loaded = tokio::task::spawn_blocking(move || load()).await;
        let mut config = loaded.map_err(|panicked| panicked.to_string())??;
        let Config { store, secret, .. } = &self.startup_config;
        if lacks_shared_caller_secret(store, secret, config.api.as_ref(), &config.routes) {
            return Err("the new configuration needs a caller secret (routes identify callers by \
                 credential, or claims are allowed), and this server was started without one: \
                 restart it"
                .to_owned());
        }
        let text = |error: anyhow::Error| format!("{error:#}");
        let store = self.context.semel.store();
        let approval =
            approver.map(|approver| Approval::new(approver, audit_of(&self.startup_config)));
        if self.reloader.is_some() != config.gateway.upstream.is_some() {
            return Err("an upstream was added or removed: restart this server".to_owned());
        }
        let routes = route_identity::check(&mut config, store, &[], approval.as_ref()).await;
        let routes = routes.map_err(text)?;
        log_warnings(&config);
        let prepared = self.reloader.as_ref().map(|reloader| reloader.prepare(&config));
        let prepared = prepared.transpose().map_err(text)?;
        routes.save(store).await.map_err(text)?;
        self.context.metrics.add_scopes(scopes(&config));
        if let Some(prepared) = prepared {
            prepared.apply().map_err(text)?;
        }
        self.claim_rules.set(&config);
        self.config_summary.set(&config);
        let pending = restart_required(&self.startup_config, &config);
        if pending.is_empty() {
            return Ok("the configuration was applied".to_owned());
        }
        Ok(format!(
            "the configuration was applied, except for settings that need a restart: {}",
            pending.join(", ")
        ))
    }
}

/// Changed settings that are only read at start. Client connections read some limits at start, so a
/// changed limit needs a restart, too.
fn restart_required(old: &Config, new: &Config) -> Vec<&'static str> {
    let api = |config: &Config| {
        let fixed = |api: &Api| (api.listen, api.threads, api.audit.clone());
        config.api.as_ref().map(fixed)
    };
    let token = |config: &Config| {
        let token = |api: &Api| {
            let file = api.operator_token_file.clone();
            (api.operator_token.clone(), file, api.tokens.clone(), api.trusted_header.clone())
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
        ("limits", old.limits != new.limits),
    ];
    changed.into_iter().filter_map(|(name, changed)| changed.then_some(name)).collect()
}

/// What a signal asks the server to do.
enum ControlSignal {
    Reload,
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
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            hangup: listen(SignalKind::hangup())?,
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> ControlSignal {
        tokio::select! {
            _ = self.hangup.recv() => ControlSignal::Reload,
            _ = self.terminate.recv() => ControlSignal::Stop,
            _ = self.interrupt.recv() => ControlSignal::Stop,
        }
    }

    pub(crate) async fn wait_for_stop(&mut self) {
        while !matches!(self.next().await, ControlSignal::Stop) {}
    }
}

#[cfg(test)]
mod tests {
    use semel_config::Overrides;

    use super::*;

    fn config(limits: &str) -> Config {
        let text = format!("[gateway]\nupstream = \"http://127.0.0.1:1\"\n[limits]\n{limits}\n");
        Config::read(None, &text, &Overrides::default(), &|_| None).unwrap()
    }

    /// Connections over HTTP/1.1 take all of them from the configuration at start.
    #[test]
    fn every_changed_limit_needs_a_restart() {
        let old = config("");
        assert!(restart_required(&old, &old).is_empty());
        for limit in ["headers = 50", "body_timeout = \"5s\"", "connections = 500"] {
            assert_eq!(restart_required(&old, &config(limit)), ["limits"], "{limit}");
        }
    }
}
