//! `semel outbox relay`. Delivers messages until it is stopped.
#![allow(clippy::print_stderr, reason = "the banner goes to stderr")]

use std::{future::pending, net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow, bail};
use axum::{Router, routing::get};
use semel_config::StoreUrl;
use semel_outbox::{
    Backlog, Relay, RelayMetrics, RelayStore, Sink,
    postgres::{self, PgOutbox},
    sinks::{HttpSink, NatsSink},
    sqlite::{self, SqliteOutbox},
};
use semel_telemetry::log::{self, LogFilter};
use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};

use super::{BUSY_TIMEOUT, DatabaseArgs, OutboxDatabase, client};
use crate::{app::Signals, store};

/// How far each bucket is counted for the metrics.
const COUNT_MAX: i64 = 10_000;

/// Arguments of `semel outbox relay`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Where to: a webhook at `https://HOST/PATH`, where {topic} is replaced; or
    /// nats://HOST:PORT/PREFIX, where the subject is PREFIX and the topic
    #[arg(long, value_name = "URL")]
    to: String,
    /// The variable with the secret that signs webhooks: `whsec_…` of Standard Webhooks
    #[arg(long, value_name = "NAME")]
    secret_env: Option<String>,
    /// A header of each webhook, with the variable that holds its value; may be repeated
    #[arg(long, value_name = "HEADER=NAME")]
    header_env: Vec<String>,
    /// How long delivered messages are kept at least
    #[arg(long, default_value = "1h", value_parser = semel_config::duration)]
    retention: Duration,
    /// Where to serve metrics, such as 127.0.0.1:9090
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Log format
    #[arg(long, value_enum, default_value_t)]
    log: log::Format,
    /// Minimum level of log lines
    #[arg(long, value_enum, default_value = "info")]
    log_level: log::Level,
}

pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let _flush = log::init(args.log, &LogFilter::Level(args.log_level), None)?;
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(relay(args))?;
    Ok(ExitCode::SUCCESS)
}

async fn relay(args: Args) -> anyhow::Result<()> {
    let sink = sink(&args).await?;
    match args.database.url()? {
        StoreUrl::Postgres(server) => {
            let pool = store::postgres(&server)?.pool(1)?;
            // An unreachable database at the start is an error; later it is waited for.
            drop(client(&pool).await?);
            serve(Relay::new(PgOutbox::new(pool).retention(args.retention), sink), &args).await
        }
        StoreUrl::Sqlite(path) => {
            super::existing(&path)?;
            let outbox = SqliteOutbox::open(&path).context("the outbox cannot be opened")?;
            serve(Relay::new(outbox.retention(args.retention), sink), &args).await
        }
        StoreUrl::Memory => bail!("an outbox in memory would lose its messages"),
    }
}

async fn serve(relay: Relay<impl RelayStore>, args: &Args) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let metrics = relay.metrics();
    let serving = serve_metrics(args, &metrics).await?;
    let (stop_tx, stop) = oneshot::channel::<()>();
    let mut relaying = tokio::spawn(relay.run(async move { drop(stop.await) }));
    eprintln!("delivering to {}", without_password(&args.to));
    tokio::select! {
        ended = &mut relaying => return ended.context("the relay ended"),
        () = signals.wait_for_stop() => {}
        failed = serving => return failed,
    }
    drop(stop_tx);
    relaying.await.context("the relay did not stop")?;
    eprintln!("stopped: {} messages were delivered", metrics.delivered());
    Ok(())
}

async fn sink(args: &Args) -> anyhow::Result<Arc<dyn Sink>> {
    let variable = |name: &str| {
        super::super::config::env(name).ok_or_else(|| anyhow!("the variable {name} is not set"))
    };
    if let Some(rest) = args.to.strip_prefix("nats://") {
        if args.secret_env.is_some() || !args.header_env.is_empty() {
            bail!("--secret-env and --header-env are for webhooks");
        }
        let (server, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        return Ok(Arc::new(NatsSink::connect(&format!("nats://{server}"), prefix).await?));
    }
    let mut sink = HttpSink::new(&args.to).context("--to")?;
    if let Some(name) = &args.secret_env {
        sink = sink.secret(&variable(name)?).context("--secret-env")?;
    }
    for pair in &args.header_env {
        let (header, name) = pair
            .split_once('=')
            .ok_or_else(|| anyhow!("--header-env: `{pair}` is not HEADER=NAME"))?;
        sink = sink.header(header, &variable(name)?).context("--header-env")?;
    }
    Ok(Arc::new(sink))
}

/// The URL without what is before the host.
fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}/{path}")
}

/// Serves the metrics for as long as the future is polled.
async fn serve_metrics(
    args: &Args,
    metrics: &Arc<RelayMetrics>,
) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + use<>> {
    let listener = match args.metrics {
        Some(address) => {
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
            eprintln!("metrics on http://{}/metrics", listener.local_addr()?);
            Some(listener)
        }
        None => None,
    };
    let (metrics, database) = (Arc::clone(metrics), args.database.clone());
    let page = move || {
        let (metrics, database) = (Arc::clone(&metrics), database.clone());
        async move { metrics_text(&metrics, backlog(&database).await.ok()) }
    };
    Ok(async move {
        match listener {
            Some(listener) => {
                axum::serve(listener, Router::new().route("/metrics", get(page))).await?;
                Ok(())
            }
            None => pending().await,
        }
    })
}

async fn backlog(database: &DatabaseArgs) -> anyhow::Result<Backlog> {
    match database.open()? {
        OutboxDatabase::Postgres(pool) => {
            Ok(postgres::backlog(&*client(&pool).await?, COUNT_MAX).await?)
        }
        OutboxDatabase::Sqlite(connection) => {
            connection.busy_timeout(BUSY_TIMEOUT)?;
            Ok(sqlite::backlog(&connection, COUNT_MAX)?)
        }
    }
}

/// The metrics in the text format of Prometheus. Those of a database that does not answer are left
/// out.
fn metrics_text(metrics: &RelayMetrics, backlog: Option<Backlog>) -> String {
    let mut text = String::new();
    let mut add = |name: &str, kind: &str, help: &str, value: f64| {
        text.push_str(&format!(
            "# HELP semel_outbox_{name} {help}\n# TYPE semel_outbox_{name} {kind}\n\
             semel_outbox_{name} {value}\n"
        ));
    };
    let number = |value: u64| u32::try_from(value).map_or(f64::from(u32::MAX), f64::from);
    #[expect(clippy::cast_precision_loss, reason = "Prometheus counts in doubles")]
    let (delivered, failed) = (metrics.delivered() as f64, metrics.failed() as f64);
    add("delivered_total", "counter", "Messages delivered by this relay", delivered);
    add("failed_total", "counter", "Failed attempts of this relay", failed);
    add("buckets", "gauge", "Buckets that this relay owns", number(metrics.buckets()));
    if let Some(Backlog { waiting, aside, parked, age }) = backlog {
        add("lag", "gauge", "Messages that are not delivered", number(waiting));
        add("aside", "gauge", "Messages whose key fails", number(aside));
        add("parked", "gauge", "Messages that wait for an operator", number(parked));
        add("age_seconds", "gauge", "Age of the oldest message", age.as_secs_f64());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(without_password("nats://me:secret@host:4222/a"), "nats://host:4222/a");
        assert_eq!(without_password("https://host/hooks/{topic}"), "https://host/hooks/{topic}");
    }

    #[test]
    fn metrics_of_an_unreachable_database_are_left_out() {
        let text = metrics_text(&RelayMetrics::default(), None);
        assert!(text.contains("semel_outbox_delivered_total 0\n") && !text.contains("_lag"));
        let backlog = Backlog { waiting: 7, ..Backlog::default() };
        let text = metrics_text(&RelayMetrics::default(), Some(backlog));
        assert!(text.contains("# TYPE semel_outbox_lag gauge\nsemel_outbox_lag 7\n"), "{text}");
    }
}
