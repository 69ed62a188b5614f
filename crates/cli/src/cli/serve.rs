//! `semel serve`. Runs the gateway and the API listener.
#![allow(clippy::print_stderr, reason = "the banner goes to stderr")]

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use tokio::runtime::Builder;

use super::{config::EXIT_BAD_CONFIG, target::Operator};
use crate::app::{Server, Signals};
use crate::route_identity::IdentityChanged;
use semel_admin::audit::Approver;
use semel_config::{Config, Overrides};
use semel_telemetry::log;

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
    /// Minimum level of log lines
    #[arg(long, value_enum, default_value_t)]
    log_level: log::Level,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config: file, overrides, accept_identity_change, operator, log, log_level } = args;
    let config = match super::config::load(file.as_deref(), &overrides) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    let _flush = log::init(log, log_level)?;
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
                eprintln!("{error}");
                return Ok(ExitCode::from(EXIT_BAD_CONFIG));
            }
            Err(error) => return Err(error),
        };
        print_banner(&server, &guarded, upstream.as_deref(), tls);
        server.run_until_stop(&mut signals).await;
        Ok(server.drain(&mut signals).await)
    })
}

/// Prints the listen addresses and the guarded routes.
fn print_banner(server: &Server, guarded: &[String], upstream: Option<&str>, tls: bool) {
    let scheme = if tls { "https" } else { "http" };
    let addresses = server.gateway.iter().flat_map(|gateway| gateway.addresses());
    for address in addresses {
        eprintln!("listening on {scheme}://{address} in front of {}", upstream.unwrap_or_default());
    }
    if let Some(api) = &server.api {
        eprintln!("api on http://{}", api.address);
    }
    for line in guarded {
        eprintln!("{line}");
    }
}
