//! What comes to harm in the middle is undone and may run again; what was recorded stays.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::Outcome;
use semel_testkit::{servers, wire::Proxy};
use tokio::{sync::Notify, time::sleep};

use crate::bench::{Bench, insert, process};

const THOSE_THAT_RUN: &str = "SELECT pid FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in tr%'";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_killed_leaves_nothing_and_the_next_try_runs() {
    let bench = Bench::new().await;
    let (first, second) = (bench.process(2), bench.process(2));
    let written = Arc::new(Notify::new());
    let killed = Arc::new(Notify::new());
    let (store, told, waits) = (first.store.clone(), Arc::clone(&written), Arc::clone(&killed));
    let run = tokio::spawn(first.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "first").await?;
        told.notify_one();
        waits.notified().await;
        insert(&tx, "too late").await?;
        Ok(1)
    }));
    written.notified().await;
    bench.eventually(THOSE_THAT_RUN).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({THOSE_THAT_RUN}) AS those");
    bench.admin.batch_execute(&kill).await.unwrap();
    killed.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert!(bench.entries().await.is_empty());
    assert!(matches!(second.write("k").await, Outcome::Ran(_)));
    assert_eq!(bench.entries().await, ["k"]);
    // The pool of the first one has made a new connection.
    assert!(matches!(first.write("k").await, Outcome::Replayed(_)));
    assert!(matches!(first.write("other").await, Outcome::Ran(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_behind_its_back_is_not_taken_for_its_own() {
    let bench = Bench::new().await;
    let process = bench.process(2);
    let store = process.store.clone();
    let run = process.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "before").await?;
        tx.batch_execute("COMMIT; BEGIN").await?;
        insert(&tx, "after").await?;
        Ok(1)
    });
    let outcome = run.await.unwrap();
    assert!(!outcome.is_final(), "{outcome:?}");
    let records = bench.admin.query("SELECT FROM semel_joint", &[]).await.unwrap();
    assert!(records.is_empty(), "nothing that was not one transaction is recorded as one");
    assert_eq!(bench.entries().await, ["before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_has_failed_records_no_value() {
    let bench = Bench::new().await;
    let process = bench.process(2);
    let store = process.store.clone();
    let run = process.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        // An error that the operation overlooks.
        let _ = tx.execute("INSERT INTO ledger (entry) VALUES (NULL)", &[]).await;
        Ok(1)
    });
    let outcome = run.await.unwrap();
    assert!(!outcome.is_final(), "{outcome:?}");
    assert!(bench.entries().await.is_empty());
    assert!(matches!(process.write("k").await, Outcome::Ran(_)));
}

/// Whatever is lost at whatever moment, also at the commit: one entry for each key, and what was
/// acknowledged is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_wire_that_is_cut_at_random_doubles_nothing_and_loses_nothing() {
    let bench = Bench::new().await;
    let proxy = Arc::new(Proxy::start(servers::postgres().port()));
    let direct = format!(":{}/", servers::postgres().port());
    let url = bench.url.replace(&direct, &format!(":{}/", proxy.port()));
    let cuts = Arc::new(AtomicU32::new(0));
    let cutter = tokio::spawn({
        let (proxy, cuts) = (Arc::clone(&proxy), Arc::clone(&cuts));
        async move {
            loop {
                sleep(Duration::from_millis(40)).await;
                proxy.cut();
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let processes = [process(&url, 4), process(&url, 4)];
    let mut keys = Vec::new();
    while keys.len() < 60 || cuts.load(Ordering::Relaxed) < 20 {
        let key = format!("key-{:05}", keys.len());
        let mut tries = 0;
        while !processes[tries % 2].try_to_write(&key).await.is_ok_and(|done| done.is_final()) {
            tries += 1;
            assert!(tries < 200, "{key} never comes to an end");
        }
        keys.push(key);
    }
    cutter.abort();
    assert_eq!(bench.entries().await, keys);
    let calm = bench.process(2);
    for key in keys {
        assert!(matches!(calm.write(&key).await, Outcome::Replayed(_)), "{key}");
    }
}

/// A commit that takes its time.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow()";

const THOSE_THAT_COMMIT: &str = "SELECT pid FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_reply_is_lost_is_found_out() {
    let bench = Bench::new().await;
    bench.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let proxy = Proxy::start(servers::postgres().port());
    let direct = format!(":{}/", servers::postgres().port());
    let url = bench.url.replace(&direct, &format!(":{}/", proxy.port()));
    let there = process(&url, 2);
    let run = tokio::spawn(async move { there.write("k").await });
    bench.eventually(THOSE_THAT_COMMIT).await;
    proxy.cut();
    let outcome = run.await.unwrap();
    assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(bench.entries().await, ["k"]);
    assert!(matches!(bench.process(2).write("k").await, Outcome::Replayed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_killed_is_not_taken_for_done() {
    let bench = Bench::new().await;
    bench.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let there = bench.process(2);
    let run = tokio::spawn(async move { there.write("k").await });
    bench.eventually(THOSE_THAT_COMMIT).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({THOSE_THAT_COMMIT}) AS those");
    bench.admin.batch_execute(&kill).await.unwrap();
    let outcome = run.await.unwrap();
    assert!(!outcome.is_final(), "{outcome:?}");
    assert!(bench.entries().await.is_empty());
    assert!(matches!(bench.process(2).write("k").await, Outcome::Ran(_)));
    assert_eq!(bench.entries().await, ["k"]);
}
