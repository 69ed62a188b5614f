//! The servers: bare axum, and the same behind the layer.
//!
//! Each is a separate process of this program, so that its processor time can be separated
//! from that of the load.

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

use crate::http::{
    exchange::{ANSWER, CALLER, LOCATION, PATH},
    serve::serve,
};

/// Prints the port that it is bound to and serves until its standard input ends: with the process
/// that started it.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    let routes = Router::new().route(PATH, post(charge));
    let (name, routes) = match *words {
        ["plain"] => ("plain", routes),
        ["memory"] => ("memory", guarded(routes, MemoryStore::new())?),
        ["sqlite", path] => ("sqlite", guarded(routes, SqliteStore::open(path)?)?),
        _ => bail!("not a server: {}", words.join(" ")),
    };
    serve(name, routes)
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
