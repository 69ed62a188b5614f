//! `semel serve`. Stands in front of an HTTP API.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::runtime::Builder;

use crate::{
    config::{
        CallerRule, Config, Gateway, Guard, KeySource, Limits, Match, Piece, Required, Route,
        SecretSource, StoreUrl, Upstream,
    },
    life,
};

/// What can be typed after `semel serve`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where requests go
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Who the caller is
    #[arg(long, value_name = "RULE")]
    caller: Vec<String>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Where operators reach it, or `off`
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    api: String,
    /// Where records live
    #[arg(long, value_name = "URL", default_value = "sqlite:semel.db")]
    store: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let config = config(&args)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let _flush = crate::ops::log::init(Default::default(), Default::default())?;
    runtime.block_on(serve(config))
}

#[expect(clippy::print_stderr, reason = "a program talks to a person")]
async fn serve(config: Config) -> anyhow::Result<ExitCode> {
    let load = Arc::new(|| Err("not yet".to_owned()));
    let server = life::start(config, load, |_| None).await?;
    for address in server.gateway.addresses() {
        eprintln!("listening on http://{address}");
    }
    if let Some(api) = &server.api {
        eprintln!("api on http://{}", api.address);
    }
    server.run().await
}

fn config(args: &Args) -> anyhow::Result<Config> {
    let upstream = Arc::new(Upstream::at(&args.upstream).map_err(anyhow::Error::msg)?);
    let guard = Guard {
        scope: semel::core::Scope::new("default")?,
        key: vec![KeySource::Header(semel_tower::header::IDEMPOTENCY_KEY)],
        required: Required::No,
        callers: args
            .caller
            .iter()
            .map(|rule| {
                if rule == "anonymous" { CallerRule::Anonymous } else { CallerRule::Authorization }
            })
            .collect(),
        fingerprint: semel::core::FingerprintRule::default(),
        policy: semel::core::Policy::default(),
        keep_headers: Vec::new(),
    };
    let matches = Match {
        methods: vec![http::Method::POST, http::Method::PATCH],
        host: None,
        path: vec![Piece::Any],
    };
    Ok(Config {
        store: match args.store.strip_prefix("sqlite:") {
            Some(path) => StoreUrl::Sqlite(path.into()),
            None => StoreUrl::Memory,
        },
        gateway: Gateway {
            listen: vec![args.listen.parse().context("--listen")?],
            tls: None,
            upstream: Arc::clone(&upstream),
            threads: std::thread::available_parallelism()?.get(),
            drain: Duration::from_secs(65),
            trust_forwarded: false,
            docs: None,
        },
        api: match &*args.api {
            "off" => None,
            address => Some(crate::config::Api {
                listen: address.parse().context("--api")?,
                operator_token: None,
                audit: "semel.audit.jsonl".into(),
            }),
        },
        limits: Limits::default(),
        sweep_every: Duration::from_secs(900),
        secret: SecretSource::BesideStore,
        routes: vec![Route { matches, guard: Some(guard), upstream }],
    })
}
