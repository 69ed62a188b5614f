//! Waiting operations hold no connection.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use semel::{OperationError, Outcome};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::harness::{TEST_TIMEOUT, TestDatabase, insert};

/// Returns a row while an operation holds its advisory lock in this database. Other databases of
/// the server belong to other tests.
const ADVISORY_LOCK_QUERY: &str = "SELECT FROM pg_locks JOIN pg_database ON oid = database \
                       WHERE locktype = 'advisory' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiting_operations_hold_no_connection() {
    let db = TestDatabase::new().await;
    let process = db.process(4);
    let (runs, go) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let (process, runs, go) = (process.clone(), Arc::clone(&runs), Arc::clone(&go));
        tasks.spawn(async move {
            let store = process.store.clone();
            let run = process.once("k").run(move |lease| async move {
                let tx = store.transaction(&lease).await?;
                insert(&tx, "once").await?;
                runs.fetch_add(1, Ordering::Relaxed);
                go.notified().await;
                Ok(17)
            });
            run.await.unwrap().into_value().unwrap()
        });
    }
    let all_wait = async {
        while process.semel.waiting() < 199 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, all_wait).await.unwrap();
    let begun = Instant::now();
    let client = process.pool.get().await.unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    println!("an unrelated query beside 199 waiting operations: {:?}", begun.elapsed());
    let status = process.pool.status();
    assert!(
        status.size - status.available <= 3,
        "{status:?}: more connections than one operation, one sweep and the test use"
    );
    drop(client);
    go.notify_one();
    let values = tasks.join_all().await;
    assert_eq!(values, [17; 200]);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(db.entries().await, ["once"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_operations_in_another_process_hold_no_connection() {
    let db = TestDatabase::new().await;
    let (here, there) = (db.process(2), db.process(1));
    let go = Arc::new(Notify::new());
    let (store, signal) = (here.store.clone(), Arc::clone(&go));
    let run = tokio::spawn(here.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "once").await?;
        signal.notified().await;
        Ok("done".to_owned())
    }));
    db.eventually(ADVISORY_LOCK_QUERY).await;
    let mut tasks = JoinSet::new();
    for _ in 0..20 {
        let there = there.clone();
        tasks.spawn(async move { there.write("k").await });
    }
    let all_wait = async {
        while there.semel.waiting() < 20 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, all_wait).await.unwrap();
    // The only connection of that process is idle.
    let client = timeout(TEST_TIMEOUT, there.pool.get()).await.unwrap().unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    drop(client);
    go.notify_one();
    assert!(matches!(run.await.unwrap().unwrap(), Outcome::Ran(_)));
    for outcome in tasks.join_all().await {
        assert!(matches!(&outcome, Outcome::Replayed(text) if text == "done"), "{outcome:?}");
    }
    assert_eq!(db.entries().await, ["once"]);
}

/// A refusal needs its connection twice, and does not return it in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_recorded_while_others_wait_for_its_connection() {
    let db = TestDatabase::new().await;
    let process = db.process(1);
    let (go, refused) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, signal) = (process.store.clone(), Arc::clone(&go));
    let first = tokio::spawn(process.once("first").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        signal.notified().await;
        Err::<(), _>(OperationError::refused("declined"))
    }));
    db.eventually(ADVISORY_LOCK_QUERY).await;
    let waits = Arc::clone(&refused);
    let second = tokio::spawn(process.once("second").run(move |_| async move {
        waits.notified().await;
        Ok(())
    }));
    while process.semel.in_flight() < 2 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    let outcome = first.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Refused(_)), "{outcome:?}");
    refused.notify_one();
    let outcome = second.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Ran(())), "{outcome:?}");
    assert!(db.entries().await.is_empty());
}

/// As `two_hundred_waiting_operations_hold_no_connection`, through the HTTP layer and with a
/// handler that extracts its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_waiting_requests_hold_no_connection() {
    use axum::{
        Extension, Router,
        body::Body,
        http::{HeaderName, Request},
        routing::post,
    };
    use semel::core::Scope;
    use semel_postgres::transactional::PgDatabase;
    use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
    use std::time::Duration;
    use tower_service::Service as _;

    async fn pay(tx: Tx<PgDatabase>, Extension(go): Extension<Arc<Notify>>) -> &'static str {
        tx.execute("INSERT INTO ledger (entry) VALUES ('once')", &[]).await.unwrap();
        go.notified().await;
        "paid"
    }

    let db = TestDatabase::new().await;
    let process = db.process(4);
    let merchants = Callers::header(HeaderName::from_static("x-merchant-id")).unwrap();
    let layer = IdempotencyLayer::new(&process.semel, Scope::new("payments").unwrap(), merchants)
        .key(KeyRule::default().required());
    let go = Arc::new(Notify::new());
    let app: Router = Router::new()
        .route("/payments", post(pay))
        .route_layer(layer)
        .layer(Extension(Arc::clone(&go)))
        .with_state(process.store.clone());
    let mut tasks = JoinSet::new();
    for _ in 0..200 {
        let mut app = app.clone();
        tasks.spawn(async move {
            let request = Request::post("/payments")
                .header("x-merchant-id", "ada")
                .header("idempotency-key", "k1")
                .body(Body::empty());
            app.call(request.unwrap()).await.unwrap().status()
        });
    }
    let all_wait = async {
        while process.semel.waiting() < 199 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, all_wait).await.unwrap();
    // The quickest of several, because other tests use the machine.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        let client = process.pool.get().await.unwrap();
        client.query_one("SELECT 1", &[]).await.unwrap();
        quickest = quickest.min(begun.elapsed());
    }
    println!("an unrelated query beside 199 waiting requests: {quickest:?}");
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    go.notify_one();
    assert!(tasks.join_all().await.iter().all(|status| status.is_success()));
    assert_eq!(db.entries().await, ["once"]);
}
