//! The servers: bare axum, and the same behind the layer.
//!
//! Each is a process of its own, this program started again, so that its processor time can be told
//! apart from that of the load.

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
};

use anyhow::bail;
use axum::{
    Router,
    body::Bytes,
    http::{HeaderName, StatusCode, header},
    response::IntoResponse,
    routing::post,
};
use semel::{
    MemoryStore, Semel,
    core::{Scope, Store},
};
use semel_sqlite::SqliteStore;
use semel_tower::{Callers, IdempotencyLayer, KeyRule};
use tokio::net::TcpSocket;

use crate::http::exchange::{ANSWER, CALLER, LOCATION, PATH};

/// As many as the rivals had when they were measured.
const WORKERS: usize = 2;

/// All connections come at once; one that does not fit in here would wait for a second.
const BACKLOG: u32 = 1024;

/// Prints the port that it is bound to and serves until its standard input ends: with whoever
/// started it.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let routes = Router::new().route(PATH, post(charge));
    let (name, routes) = match *words {
        ["plain"] => ("plain", routes),
        ["memory"] => ("memory", guarded(routes, MemoryStore::new())?),
        ["sqlite", path] => ("sqlite", guarded(routes, SqliteStore::open(path)?)?),
        _ => bail!("not a server: {}", words.join(" ")),
    };
    // A profiler tells the servers apart by the names of their threads.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .thread_name(name)
        .enable_all()
        .build()?;
    let inside = runtime.enter();
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let listener = socket.listen(BACKLOG)?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    runtime.spawn(async { axum::serve(listener, routes).await });
    drop(inside);
    io::copy(&mut io::stdin().lock(), &mut io::sink())?;
    runtime.shutdown_background();
    Ok(())
}

/// The layer as a payment service would have it: its defaults, and a key with every request.
fn guarded(routes: Router, store: impl Store) -> anyhow::Result<Router> {
    let callers = Callers::header(HeaderName::from_static(CALLER))?;
    let layer = IdempotencyLayer::new(&Semel::new(store), Scope::new("payments")?, callers);
    Ok(routes.route_layer(layer.key(KeyRule::default().required())))
}

/// What is guarded: it reads its order whole and answers at once.
async fn charge(_order: Bytes) -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::LOCATION, LOCATION)];
    (StatusCode::CREATED, headers, ANSWER)
}
