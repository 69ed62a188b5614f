//! A service on axum whose handlers tower-http's `TimeoutLayer` drops after a charge.
//!
//! `GET /ledger` says how many charges were made and how many requests still run.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime, time::sleep};
use tower_http::timeout::TimeoutLayer;

/// Until a slow request is answered.
const LIMIT: Duration = Duration::from_millis(200);

/// Until the charge is written down, after the card network has made it.
const BOOKKEEPING: Duration = Duration::from_millis(600);

#[derive(Debug, Default)]
struct Ledger {
    charges: AtomicUsize,
    running: AtomicUsize,
}

/// Serves until the process ends.
pub(crate) fn start() -> SocketAddr {
    let (send_address, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            send_address.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, router()).await.unwrap();
        });
    });
    address.recv().unwrap()
}

fn router() -> Router {
    let limit = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, LIMIT);
    Router::new()
        .route("/slow", post(charge_slowly))
        .route("/ledger", get(read_ledger))
        .layer(limit)
        .with_state(Arc::default())
}

/// The layer drops this at its `await`: the card is charged, and nothing is written down.
async fn charge_slowly(State(ledger): State<Arc<Ledger>>) -> StatusCode {
    let _running = Running::begin(&ledger);
    ledger.charges.fetch_add(1, SeqCst);
    sleep(BOOKKEEPING).await;
    StatusCode::CREATED
}

async fn read_ledger(State(ledger): State<Arc<Ledger>>) -> Json<Value> {
    let (charges, running) = (ledger.charges.load(SeqCst), ledger.running.load(SeqCst));
    Json(json!({ "charges": charges, "running": running }))
}

/// Counts a request for as long as its handler lives.
struct Running<'a>(&'a Ledger);

impl<'a> Running<'a> {
    fn begin(ledger: &'a Ledger) -> Self {
        ledger.running.fetch_add(1, SeqCst);
        Self(ledger)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}
