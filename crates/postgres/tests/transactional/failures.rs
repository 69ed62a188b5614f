//! A failed operation is rolled back and may run again; a recorded one stays.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use semel::Outcome;
use semel_testkit::{servers, wire::Proxy};
use tokio::{sync::Notify, time::sleep};

use crate::harness::{TestDatabase, insert, process};

const RUNNING_BACKENDS: &str = "SELECT pid FROM pg_stat_activity \
     WHERE datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in tr%'";

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_connection_is_rolled_back_and_the_retry_runs() {
    let db = TestDatabase::new().await;
    let (first, second) = (db.process(2), db.process(2));
    let written = Arc::new(Notify::new());
    let killed = Arc::new(Notify::new());
    let (store, signal, waits) = (first.store.clone(), Arc::clone(&written), Arc::clone(&killed));
    let run = tokio::spawn(first.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "first").await?;
        signal.notify_one();
        waits.notified().await;
        insert(&tx, "too late").await?;
        Ok(1)
    }));
    written.notified().await;
    db.eventually(RUNNING_BACKENDS).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({RUNNING_BACKENDS}) AS those");
    db.admin.batch_execute(&kill).await.unwrap();
    killed.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    assert!(db.entries().await.is_empty());
    assert!(matches!(second.write("k").await, Outcome::Ran(_)));
    assert_eq!(db.entries().await, ["k"]);
    // The pool of the first process opens a new connection.
    assert!(matches!(first.write("k").await, Outcome::Replayed(_)));
    assert!(matches!(first.write("other").await, Outcome::Ran(_)));
}

/// The server frees the lock with its connection, so the handler begins a second time while the
/// first run goes on. A call to another service is harmless only under a derived key.
#[tokio::test(flavor = "multi_thread")]
async fn two_runs_beside_a_lost_connection_write_once_and_call_under_one_key() {
    let db = TestDatabase::new().await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let (called, resumed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let first = db.process(2);
    let (store, bank) = (first.store.clone(), Arc::clone(&calls));
    let (signal, waits) = (Arc::clone(&called), Arc::clone(&resumed));
    let run = tokio::spawn(first.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        bank.lock().unwrap().push(lease.key_for("bank"));
        signal.notify_one();
        waits.notified().await;
        insert(&tx, "first").await?;
        Ok("first".to_owned())
    }));
    called.notified().await;
    db.eventually(RUNNING_BACKENDS).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({RUNNING_BACKENDS}) AS those");
    db.admin.batch_execute(&kill).await.unwrap();
    let second = db.process(2);
    let (store, bank) = (second.store.clone(), Arc::clone(&calls));
    let outcome = second.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        bank.lock().unwrap().push(lease.key_for("bank"));
        insert(&tx, "second").await?;
        Ok("second".to_owned())
    });
    assert!(matches!(outcome.await.unwrap(), Outcome::Ran(_)));
    resumed.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(db.entries().await, ["second"]);
    let calls = calls.lock().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_by_the_operation_itself_is_not_recorded() {
    let db = TestDatabase::new().await;
    let process = db.process(2);
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
    let records = db.admin.query("SELECT FROM semel_transactional", &[]).await.unwrap();
    assert!(records.is_empty(), "only one transaction may be recorded");
    assert_eq!(db.entries().await, ["before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_records_no_value() {
    let db = TestDatabase::new().await;
    let process = db.process(2);
    let store = process.store.clone();
    let run = process.once("k").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        // The operation ignores this error.
        let _ = tx.execute("INSERT INTO ledger (entry) VALUES (NULL)", &[]).await;
        Ok(1)
    });
    let outcome = run.await.unwrap();
    assert!(!outcome.is_final(), "{outcome:?}");
    assert!(db.entries().await.is_empty());
    assert!(matches!(process.write("k").await, Outcome::Ran(_)));
}

/// The delay before the next cut while keys are written.
const CUT_DELAY: Duration = Duration::from_millis(40);

/// Wherever a connection is cut, also at the commit, each key has one entry, and every acknowledged
/// one is there.
#[tokio::test(flavor = "multi_thread")]
async fn randomly_cut_connections_duplicate_and_lose_nothing() {
    let db = TestDatabase::new().await;
    let proxy = Arc::new(Proxy::start(servers::postgres().port()));
    let direct = format!(":{}/", servers::postgres().port());
    let url = db.url.replace(&direct, &format!(":{}/", proxy.port()));
    let (cuts, written) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let cutter = tokio::spawn({
        let (proxy, cuts, written) = (Arc::clone(&proxy), Arc::clone(&cuts), Arc::clone(&written));
        async move {
            let (mut delay, mut seen) = (CUT_DELAY, 0);
            loop {
                sleep(delay).await;
                // On a busy machine a key takes longer than the shortest delay.
                let now = written.load(Ordering::Relaxed);
                delay = if now == seen { delay * 2 } else { CUT_DELAY };
                seen = now;
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
            assert!(tries < 200, "{key} is never done");
        }
        keys.push(key);
        written.fetch_add(1, Ordering::Relaxed);
    }
    cutter.abort();
    assert_eq!(db.entries().await, keys);
    let calm = db.process(2);
    for key in keys {
        assert!(matches!(calm.write(&key).await, Outcome::Replayed(_)), "{key}");
    }
}

/// A slow commit.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION slow()";

const COMMITTING_BACKENDS: &str = "SELECT pid FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_commit_whose_reply_is_lost_is_looked_up() {
    let db = TestDatabase::new().await;
    db.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let proxy = Proxy::start(servers::postgres().port());
    let direct = format!(":{}/", servers::postgres().port());
    let url = db.url.replace(&direct, &format!(":{}/", proxy.port()));
    let there = process(&url, 2);
    let run = tokio::spawn(async move { there.write("k").await });
    db.eventually(COMMITTING_BACKENDS).await;
    proxy.cut();
    let outcome = run.await.unwrap();
    assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(db.entries().await, ["k"]);
    assert!(matches!(db.process(2).write("k").await, Outcome::Replayed(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_commit_does_not_count_as_done() {
    let db = TestDatabase::new().await;
    db.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let there = db.process(2);
    let run = tokio::spawn(async move { there.write("k").await });
    db.eventually(COMMITTING_BACKENDS).await;
    let kill = format!("SELECT pg_terminate_backend(pid) FROM ({COMMITTING_BACKENDS}) AS those");
    db.admin.batch_execute(&kill).await.unwrap();
    let outcome = run.await.unwrap();
    assert!(!outcome.is_final(), "{outcome:?}");
    assert!(db.entries().await.is_empty());
    assert!(matches!(db.process(2).write("k").await, Outcome::Ran(_)));
    assert_eq!(db.entries().await, ["k"]);
}
