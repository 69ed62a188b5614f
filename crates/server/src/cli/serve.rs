//! `semel serve`. Stands in front of an HTTP API.
#![allow(clippy::print_stderr, reason = "a program talks to a person")]

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use tokio::runtime::Builder;

use super::{config::BAD_CONFIGURATION, desk::Operator};
use crate::{
    config::{Config, Overrides},
    life::{self, Server, Signals},
    ops::log,
    route_identity::{Acceptor, IdentityChanged},
};

/// What can be typed after `semel serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration; `semel config default` shows every setting
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    typed: Overrides,
    /// Start although routes have changed so that keys that have run would run again; this is
    /// written to the audit log
    #[arg(long)]
    accept_identity_change: bool,
    #[command(flatten)]
    operator: Operator,
    /// How the log is written
    #[arg(long, value_enum, default_value_t)]
    log: log::Format,
    /// How important an event must be to be logged
    #[arg(long, value_enum, default_value_t)]
    log_level: log::Level,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { config: file, typed, accept_identity_change, operator, log, log_level } = args;
    let config = match super::config::load(file.as_deref(), &typed) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    let _flush = log::init(log, log_level)?;
    let load = Arc::new(move || {
        let config = Config::load(file.as_deref(), &typed, &super::config::env);
        config.map_err(|error| error.to_string())
    });
    let why = "semel serve --accept-identity-change".to_owned();
    let acceptor = accept_identity_change.then(|| Acceptor { who: operator.name(), why });
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(async {
        let signals = Signals::new()?;
        let guarded = config.guarded_lines();
        let upstream = config.gateway.upstream.to_string();
        let tls = config.gateway.tls.is_some();
        let server = match life::start(config, load, acceptor).await {
            Ok(server) => server,
            Err(error) if error.is::<IdentityChanged>() => {
                eprintln!("{error}");
                return Ok(ExitCode::from(BAD_CONFIGURATION));
            }
            Err(error) => return Err(error),
        };
        introduce(&server, &guarded, &upstream, tls);
        server.run(signals).await
    })
}

/// Says where it listens and what it guards.
fn introduce(server: &Server, guarded: &[String], upstream: &str, tls: bool) {
    let scheme = if tls { "https" } else { "http" };
    for address in server.gateway.addresses() {
        eprintln!("listening on {scheme}://{address} in front of {upstream}");
    }
    if let Some(api) = &server.api {
        eprintln!("api on http://{}", api.address);
    }
    for line in guarded {
        eprintln!("{line}");
    }
}
