//! Those who wait hold no connection.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use semel::{Outcome, Stop};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::bench::{Bench, PATIENCE, insert};

/// An operation has its lock, in this database: other tests have theirs on the same server.
const RUNNING: &str = "SELECT FROM pg_locks JOIN pg_database ON oid = database \
                       WHERE locktype = 'advisory' AND datname = current_database()";

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_who_wait_leave_the_pool_to_others() {
    let bench = Bench::new().await;
    let process = bench.process(4);
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
    timeout(PATIENCE, all_wait).await.unwrap();
    let begun = Instant::now();
    let client = process.pool.get().await.unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    println!("an unrelated query beside 199 who wait: {:?}", begun.elapsed());
    let status = process.pool.status();
    assert!(status.size - status.available <= 3, "{status:?}: one runs, one sweeps, one is ours");
    drop(client);
    go.notify_one();
    let values = tasks.join_all().await;
    assert_eq!(values, [17; 200]);
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(bench.entries().await, ["once"]);
}

/// Elsewhere too: nobody waits inside the database.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_wait_in_another_process_hold_no_connection_either() {
    let bench = Bench::new().await;
    let (here, there) = (bench.process(2), bench.process(1));
    let go = Arc::new(Notify::new());
    let (store, told) = (here.store.clone(), Arc::clone(&go));
    let run = tokio::spawn(here.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "once").await?;
        told.notified().await;
        Ok("done".to_owned())
    }));
    bench.eventually(RUNNING).await;
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
    timeout(PATIENCE, all_wait).await.unwrap();
    // The only connection of that process is free for others.
    let client = timeout(PATIENCE, there.pool.get()).await.unwrap().unwrap();
    client.query_one("SELECT 1", &[]).await.unwrap();
    drop(client);
    go.notify_one();
    assert!(matches!(run.await.unwrap().unwrap(), Outcome::Ran(_)));
    for outcome in tasks.join_all().await {
        assert!(matches!(&outcome, Outcome::Replayed(text) if text == "done"), "{outcome:?}");
    }
    assert_eq!(bench.entries().await, ["once"]);
}

/// A refusal needs its connection twice, and does not stand in line for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_recorded_though_others_wait_for_its_connection() {
    let bench = Bench::new().await;
    let process = bench.process(1);
    let (go, refused) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, told) = (process.store.clone(), Arc::clone(&go));
    let first = tokio::spawn(process.once("first").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        told.notified().await;
        Err::<(), _>(Stop::refused("declined"))
    }));
    bench.eventually(RUNNING).await;
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
    assert!(bench.entries().await.is_empty());
}

/// The same through the layer, over a handler that takes its transaction as an argument.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_requests_that_wait_leave_the_pool_to_others() {
    use axum::{
        Extension, Router,
        body::Body,
        http::{HeaderName, Request},
        routing::post,
    };
    use semel::core::Scope;
    use semel_postgres::joint::PgDatabase;
    use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
    use std::time::Duration;
    use tower_service::Service as _;

    async fn pay(tx: Tx<PgDatabase>, Extension(go): Extension<Arc<Notify>>) -> &'static str {
        tx.execute("INSERT INTO ledger (entry) VALUES ('once')", &[]).await.unwrap();
        go.notified().await;
        "paid"
    }

    let bench = Bench::new().await;
    let process = bench.process(4);
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
    timeout(PATIENCE, all_wait).await.unwrap();
    // One of them is not disturbed by what else this machine does.
    let mut quickest = Duration::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        let client = process.pool.get().await.unwrap();
        client.query_one("SELECT 1", &[]).await.unwrap();
        quickest = quickest.min(begun.elapsed());
    }
    println!("an unrelated query beside 199 requests that wait: {quickest:?}");
    assert!(quickest < Duration::from_millis(50), "{quickest:?}");
    go.notify_one();
    assert!(tasks.join_all().await.iter().all(|status| status.is_success()));
    assert_eq!(bench.entries().await, ["once"]);
}
