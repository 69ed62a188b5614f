//! The booking service: repeats, a full flight, and a service that is gone in the middle.
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
};

use axum::{Router, body::Body};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_examples::booking::{self, TravelServices};
use semel_steps::StepError;
use tokio::runtime::Runtime;
use tower_service::Service as _;

#[derive(Clone, Default)]
struct Ledger {
    /// Every effect, by the key that it was asked for with.
    effects: Arc<Mutex<Vec<(String, String)>>>,
    hangs: Arc<AtomicBool>,
    entered: Arc<Mutex<Option<mpsc::Sender<()>>>>,
}

impl Ledger {
    fn once(&self, key: &str, what: &str) {
        let mut effects = self.effects.lock().unwrap();
        if effects.iter().all(|(known, _)| known != key) {
            effects.push((key.to_owned(), what.to_owned()));
        }
    }

    fn effects(&self) -> Vec<String> {
        self.effects.lock().unwrap().iter().map(|(_, what)| what.clone()).collect()
    }
}

impl TravelServices for Ledger {
    async fn charge(&self, key: &str, cents: u64) -> Result<String, StepError> {
        self.once(key, &format!("charge {cents}"));
        Ok(format!("ch_{cents}"))
    }

    async fn refund(&self, key: &str, charge: &str) -> Result<(), StepError> {
        self.once(key, &format!("refund {charge}"));
        Ok(())
    }

    async fn send_ticket(&self, key: &str) -> Result<(), StepError> {
        if self.hangs.load(Ordering::SeqCst) {
            if let Some(entered) = self.entered.lock().unwrap().take() {
                entered.send(()).unwrap();
            }
            std::future::pending::<()>().await;
        }
        self.once(key, "ticket");
        Ok(())
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn request(key: &str, flight: u32) -> Request<Body> {
    let body = format!("{{\"flight\":{flight},\"cents\":9900}}");
    Request::post("/bookings")
        .header("idempotency-key", key)
        .header("x-agency", "a-1")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap()
}

async fn send(router: &Router, key: &str, flight: u32) -> (StatusCode, bool, String) {
    let response = router.clone().call(request(key, flight)).await.unwrap();
    let is_replayed = response.headers().contains_key("idempotent-replayed");
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, is_replayed, String::from_utf8(body.to_vec()).unwrap())
}

fn with_flights(folder: &Path) {
    let travel = rusqlite::Connection::open(folder.join("travel.db")).unwrap();
    let flights = "CREATE TABLE flights (id INTEGER PRIMARY KEY, seats INTEGER NOT NULL); \
                   INSERT INTO flights VALUES (1, 5), (2, 0)";
    travel.execute_batch(flights).unwrap();
}

#[test]
fn a_repeat_replays_and_a_full_flight_gives_the_money_back() {
    let folder = tempfile::tempdir().unwrap();
    with_flights(folder.path());
    let ledger = Ledger::default();
    runtime().block_on(async {
        let (router, _operations) = booking::router(folder.path(), ledger.clone()).unwrap();
        let booked = r#"{"charge":"ch_9900","seats_left":4}"#.to_owned();
        let first = send(&router, "k-1", 1).await;
        assert_eq!(first, (StatusCode::CREATED, false, booked.clone()));
        assert_eq!(send(&router, "k-1", 1).await, (StatusCode::CREATED, true, booked));
        assert_eq!(ledger.effects(), ["charge 9900", "ticket"]);
        let full = send(&router, "k-2", 2).await;
        assert_eq!(
            (full.0, full.2.as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, "the flight is full")
        );
        assert_eq!(ledger.effects()[2..], ["charge 9900", "refund ch_9900"]);
    });
}

#[test]
fn a_repeat_after_a_crash_joins_the_operation() {
    let folder = tempfile::tempdir().unwrap();
    with_flights(folder.path());
    let ledger = Ledger::default();
    let (entered_tx, entered) = mpsc::channel();
    *ledger.entered.lock().unwrap() = Some(entered_tx);
    ledger.hangs.store(true, Ordering::SeqCst);
    let first = runtime();
    let (router, operations) =
        first.block_on(async { booking::router(folder.path(), ledger.clone()).unwrap() });
    first.spawn(async move { send(&router, "k-1", 1).await });
    entered.recv().unwrap();
    first.shutdown_background();
    drop(operations);
    // As after a restart of the machine, leases count as ended. The store of keys is lost: the
    // operation is found by the key that is derived from the request's.
    let travel = rusqlite::Connection::open(folder.path().join("travel.db")).unwrap();
    travel.execute("UPDATE semel_operation SET boot = ''", []).unwrap();
    for file in std::fs::read_dir(folder.path()).unwrap() {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("semel.db") {
            std::fs::remove_file(path).unwrap();
        }
    }

    ledger.hangs.store(false, Ordering::SeqCst);
    runtime().block_on(async {
        let (router, _operations) = booking::router(folder.path(), ledger.clone()).unwrap();
        let booked = r#"{"charge":"ch_9900","seats_left":4}"#.to_owned();
        assert_eq!(send(&router, "k-1", 1).await, (StatusCode::CREATED, false, booked));
    });
    assert_eq!(ledger.effects(), ["charge 9900", "ticket"]);
}
