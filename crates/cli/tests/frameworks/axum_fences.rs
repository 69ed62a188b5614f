//! A service on axum that refuses a zombie, with SQLite.
//!
//! The first attempt of each operation waits for the gate before it writes.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use axum::{
    Json, Router,
    extract::State,
    http::HeaderMap,
    routing::{get, post},
};
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime, sync::Semaphore};

use crate::axum_fence::{FenceError, RequestFence};

struct Service {
    database: Mutex<Connection>,
    gate: Semaphore,
    refused: AtomicUsize,
}

/// Serves until the process ends.
pub(crate) fn start() -> SocketAddr {
    let database = Connection::open_in_memory().unwrap();
    let tables = "CREATE TABLE operation_fence (operation text PRIMARY KEY, fence bigint NOT NULL);
                  CREATE TABLE charge (customer text, attempt bigint)";
    database.execute_batch(tables).unwrap();
    let (gate, refused) = (Semaphore::new(0), AtomicUsize::new(0));
    let service = Arc::new(Service { database: Mutex::new(database), gate, refused });
    let (send_address, address) = mpsc::channel();
    thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            send_address.send(listener.local_addr().unwrap()).unwrap();
            let router = Router::new()
                .route("/charges", post(charge))
                .route("/ledger", get(ledger))
                .route("/open-gate", get(open_gate))
                .with_state(service);
            axum::serve(listener, router).await.unwrap();
        });
    });
    address.recv().unwrap()
}

async fn charge(
    State(service): State<Arc<Service>>,
    fence: RequestFence,
    headers: HeaderMap,
    Json(wanted): Json<Value>,
) -> Result<Json<Value>, FenceError> {
    let attempt: u32 = headers["idempotency-attempt"].to_str().unwrap().parse().unwrap();
    if attempt == 1 {
        // The connection may be gone by then, and the work goes on.
        let written = tokio::spawn(async move {
            service.gate.acquire().await.unwrap().forget();
            write(&service, &fence, &wanted, attempt)
        });
        return written.await.unwrap();
    }
    write(&service, &fence, &wanted, attempt)
}

fn write(
    service: &Service,
    fence: &RequestFence,
    wanted: &Value,
    attempt: u32,
) -> Result<Json<Value>, FenceError> {
    let customer = wanted["customer"].as_str().unwrap();
    let mut database = service.database.lock().unwrap();
    let transaction = database.transaction()?;
    let claimed = fence.claim(&transaction, &format!("charge {customer}"));
    if matches!(claimed, Err(FenceError::Stale)) {
        service.refused.fetch_add(1, SeqCst);
    }
    claimed?;
    transaction.execute("INSERT INTO charge VALUES ($1, $2)", (customer, attempt))?;
    transaction.commit()?;
    Ok(Json(json!({ "customer": customer, "attempt": attempt })))
}

async fn ledger(State(service): State<Arc<Service>>) -> Json<Value> {
    let database = service.database.lock().unwrap();
    let mut query = database.prepare("SELECT attempt FROM charge").unwrap();
    let attempts = query.query_map([], |row| row.get(0)).unwrap();
    let attempts: Vec<u32> = attempts.map(Result::unwrap).collect();
    Json(json!({ "attempts": attempts, "refused": service.refused.load(SeqCst) }))
}

async fn open_gate(State(service): State<Arc<Service>>) -> Json<Value> {
    service.gate.add_permits(1);
    Json(json!({}))
}
