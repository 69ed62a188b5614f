//! `semel serve`. Runs the gateway and the API listener.
#![allow(clippy::print_stderr, reason = "in text format the banner goes to stderr")]

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use tokio::runtime::Builder;

use super::{config::EXIT_BAD_CONFIG, target::Operator};
use crate::app::{Server, Signals};
use crate::route_identity::IdentityChanged;
use crate::supervisor::Supervisor;
use semel_admin::audit::Approver;
use semel_config::{Config, Overrides};
use semel_telemetry::{
    log::{self, LogFilter, LogHandle},
    trace::TraceExport,
};

/// Arguments of `semel serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration; `semel config default` shows every setting
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
    /// Start although routes have changed so that keys that have run may run again; this is
    /// written to the audit log
    #[arg(long)]
    accept_identity_change: bool,
    #[command(flatten)]
    operator: Operator,
    /// Log format
    #[arg(long, value_enum, default_value_t)]
    log: log::Format,
    /// Minimum level of log lines [default: the directives in `RUST_LOG`, or info]
    #[arg(long, value_enum)]
    log_level: Option<log::Level>,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = match (args.log_level, super::config::env("RUST_LOG")) {
        (Some(level), _) => LogFilter::Level(level),
        (None, Some(directives)) if !directives.is_empty() => LogFilter::Directives(directives),
        (None, _) => LogFilter::Level(log::Level::Info),
    };
    let format = args.log;
    let log = log::init(format, &filter, trace_export().as_ref())?;
    serve(args, &log).or_else(|error| match format {
        log::Format::Text => Err(error),
        log::Format::Json => {
            tracing::error!("{error:#}");
            Ok(ExitCode::FAILURE)
        }
    })
}

/// Traces are exported where the environment says where to, as for every program with
/// OpenTelemetry.
fn trace_export() -> Option<TraceExport> {
    let set = |name: &str| super::config::env(name).filter(|value| !value.is_empty());
    let is_off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    set(traces).or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT")).filter(|_| !is_off)?;
    let service_name = set("OTEL_SERVICE_NAME").unwrap_or_else(|| "semel".to_owned());
    Some(TraceExport { service_name })
}

fn serve(args: Args, log: &LogHandle) -> anyhow::Result<ExitCode> {
    let Args { config: file, overrides, accept_identity_change, operator, log: format, .. } = args;
    let config = match Config::load(file.as_deref(), &overrides, &super::config::env) {
        Ok(config) => config,
        Err(error) => return Ok(refuse_config(format, &error.to_string())),
    };
    let load = Arc::new(move || {
        let config = Config::load(file.as_deref(), &overrides, &super::config::env);
        config.map_err(|error| error.to_string())
    });
    let why = "semel serve --accept-identity-change".to_owned();
    let approver = accept_identity_change.then(|| Approver { who: operator.name(), why });
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(async {
        let mut signals = Signals::new()?;
        let guarded = config.guarded_lines();
        let upstream = config.gateway.upstream.as_deref().map(ToString::to_string);
        let tls = config.gateway.tls.is_some();
        let server = match crate::app::start(config, load, approver).await {
            Ok(server) => server,
            Err(error) if error.is::<IdentityChanged>() => {
                return Ok(refuse_config(format, &error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let socket = super::config::env("NOTIFY_SOCKET");
        let server = server.with_supervisor(Supervisor::at(socket.as_deref()));
        server.export_dropped_lines(log.dropped_lines());
        print_banner(&server, &guarded, upstream.as_deref(), tls, format);
        server.run_until_stop(&mut signals).await;
        Ok(server.drain(&mut signals).await)
    })
}

/// Reports an invalid configuration, which may take several lines.
fn refuse_config(format: log::Format, error: &str) -> ExitCode {
    match format {
        log::Format::Text => eprintln!("{error}"),
        log::Format::Json => error
            .lines()
            .filter(|line| !line.trim().is_empty())
            .for_each(|line| tracing::error!("{line}")),
    }
    ExitCode::from(EXIT_BAD_CONFIG)
}

/// Prints the listen addresses and the guarded routes. A log in JSON has them as lines.
fn print_banner(
    server: &Server,
    guarded: &[String],
    upstream: Option<&str>,
    tls: bool,
    format: log::Format,
) {
    let print = |line: String| match format {
        log::Format::Text => eprintln!("{line}"),
        log::Format::Json => tracing::info!("{line}"),
    };
    let scheme = if tls { "https" } else { "http" };
    let addresses = server.gateway.iter().flat_map(|gateway| gateway.addresses());
    for address in addresses {
        let upstream = upstream.unwrap_or_default();
        print(format!("listening on {scheme}://{address} in front of {upstream}"));
    }
    if let Some(api) = &server.api {
        print(format!("api on http://{}", api.address));
    }
    guarded.iter().cloned().for_each(print);
}
