//! Ten thousand waiters: a test binary of its own, because it measures the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "the figures are worth seeing")]

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, StatusCode},
    routing::post,
};
use semel::{
    Semel,
    core::{Policy, Scope},
};
use semel_sqlite::SqliteStore;
use semel_tower::{Callers, IdempotencyKey, IdempotencyLayer};
use tokio::{sync::Semaphore, task::JoinSet, time::Instant};
use tower_service::Service as _;

const WAITERS: usize = 10_000;
const KEYS: usize = 100;
const BYTES_MAX: usize = 100 << 20;

/// The resources of a process that waiting must not take.
#[derive(Debug)]
struct Taken {
    resident_bytes: usize,
    threads: usize,
    descriptors: usize,
}

impl Taken {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| -> usize {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        Self {
            resident_bytes: number("VmRSS:") << 10,
            threads: number("Threads:"),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        }
    }
}

/// A separate service on the store in this file, as if in another process.
struct Process {
    semel: Semel,
    app: Router,
}

impl Process {
    fn start(file: &Path, gate: &Arc<Semaphore>, runs: &Arc<AtomicU32>) -> Self {
        let semel = Semel::builder(SqliteStore::open(file).unwrap())
            .waiting_max(WAITERS)
            .per_caller_max(2 * WAITERS)
            .build();
        let policy = Policy { wait: Duration::from_secs(60), ..Policy::default() };
        let layer =
            IdempotencyLayer::new(&semel, Scope::new("payments").unwrap(), Callers::anonymous())
                .policy(policy);
        let (gate, runs) = (Arc::clone(gate), Arc::clone(runs));
        let charge = move |IdempotencyKey(key): IdempotencyKey| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            drop(gate.acquire().await.unwrap());
            format!("{key} is charged")
        };
        Self { semel, app: Router::new().route("/", post(charge)).layer(layer) }
    }

    async fn send(&self, key: usize) -> (StatusCode, String) {
        send(self.app.clone(), key).await
    }

    /// Lets this many requests wait, and checks their resources.
    async fn crowd(&self) -> JoinSet<(usize, StatusCode, String)> {
        let before = Taken::now();
        let mut waiters = JoinSet::new();
        for number in 0..WAITERS {
            let (app, key) = (self.app.clone(), number % KEYS);
            waiters.spawn(async move {
                let (status, body) = send(app, key).await;
                (key, status, body)
            });
        }
        let begun = Instant::now();
        while self.semel.waiting() < WAITERS {
            assert!(begun.elapsed() < Duration::from_secs(30), "{} wait", self.semel.waiting());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Real time must pass: threads and connections that waiters should not hold would be seen
        // by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let after = Taken::now();
        let bytes = after.resident_bytes.saturating_sub(before.resident_bytes);
        println!("{} wait with {} KiB", self.semel.waiting(), bytes >> 10);
        assert!(bytes < BYTES_MAX, "{bytes} bytes");
        assert_eq!(after.threads, before.threads, "who waits holds no thread");
        assert_eq!(after.descriptors, before.descriptors, "who waits holds no connection");
        waiters
    }
}

async fn send(mut app: Router, key: usize) -> (StatusCode, String) {
    let request = Request::post("/").header("idempotency-key", format!("key-{key}"));
    let response = app.call(request.body(Body::from("body")).unwrap()).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_wait_here_or_elsewhere_and_the_next_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.db");
    let (gate, runs) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicU32::new(0)));
    let owner = Process::start(&file, &gate, &runs);
    let other = Process::start(&file, &gate, &runs);
    let mut running = JoinSet::new();
    for key in 0..KEYS {
        let app = owner.app.clone();
        running.spawn(async move { send(app, key).await });
    }
    while runs.load(Ordering::SeqCst) < u32::try_from(KEYS).unwrap() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let elsewhere = other.crowd().await;
    let joined = owner.crowd().await;
    for process in [&owner, &other] {
        let begun = Instant::now();
        let (status, body) = process.send(7).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("too-many-in-flight"), "{body}");
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    }
    gate.add_permits(KEYS);
    for (key, status, body) in [elsewhere.join_all().await, joined.join_all().await].concat() {
        assert_eq!((status, body), (StatusCode::OK, format!("key-{key} is charged")));
    }
    running.join_all().await;
    assert_eq!(runs.load(Ordering::SeqCst), u32::try_from(KEYS).unwrap());
    assert_eq!((owner.semel.waiting(), other.semel.waiting()), (0, 0));
}
