//! The statements that begin and commit an operation.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use semel::{
    Outcome,
    core::{Caller, Key, OnUnknown, Store as _},
};
use semel_postgres::transactional::PgDatabase;
use tokio::sync::Notify;

use crate::harness::{Process, TestDatabase, insert, pool};

/// Inserts the record of the key `k-1`, as another program would.
const RECORD: &str = "
    INSERT INTO semel_transactional
    SELECT 'b419559d-4e0b-e293-4315-76a3e9cd8550', scope, caller, 'k-1',
        fingerprint, fence, answer, recorded_at, expires_at
    FROM semel_transactional WHERE key = 'k-0'";

/// A lock that is granted after a while, as to a transaction that waits for the commit of its
/// holder.
const SLOW_LOCK: &str = "
    CREATE SCHEMA slow;
    CREATE FUNCTION slow.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN pg_catalog.pg_try_advisory_xact_lock($1); END $$";

const LOCKING_BACKENDS: &str = "SELECT FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

async fn set(db: &TestDatabase, setting: &str) {
    let name = db.url.rsplit('/').next().unwrap();
    let set = format!("ALTER DATABASE \"{name}\" SET {setting}");
    db.admin.batch_execute(&set).await.unwrap();
}

/// Above read committed the snapshot of the statement that takes the lock is older than the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_committed_before_the_lock_is_taken_is_seen() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let db = TestDatabase::new().await;
        db.process(1).write("k-0").await;
        db.admin.batch_execute(SLOW_LOCK).await.unwrap();
        set(&db, "search_path = slow, pg_catalog, public").await;
        set(&db, &format!("default_transaction_isolation = '{isolation}'")).await;
        let process = db.process(1);
        let (store, runs) = (process.store.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&runs);
        let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
            counted.fetch_add(1, Ordering::Relaxed);
            insert(&*store.transaction(&lease).await?, "twice").await?;
            Ok("twice".to_owned())
        }));
        db.eventually(LOCKING_BACKENDS).await;
        db.admin.batch_execute(RECORD).await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        let seen = matches!(&outcome, Outcome::Replayed(text) if text == "k-0");
        assert!(seen, "{isolation}: {outcome:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 0, "{isolation}");
        assert_eq!(db.entries().await, ["k-0"], "{isolation}");
    }
}

/// The session releases the lock that it took to begin again.
#[tokio::test(flavor = "multi_thread")]
async fn above_read_committed_no_lock_outlives_its_transaction() {
    let db = TestDatabase::new().await;
    set(&db, "default_transaction_isolation = 'repeatable read'").await;
    let process = db.process(1);
    for key in ["k-0", "k-1", "k-2"] {
        assert!(matches!(process.write(key).await, Outcome::Ran(_)));
    }
    let locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(db.admin.query(locks, &[]).await.unwrap().len(), 0);
    assert_eq!(db.entries().await, ["k-0", "k-1", "k-2"]);
}

/// A transaction id would repeat after a failover that lost some.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_at_least_the_wall_clock() {
    let db = TestDatabase::new().await;
    let process = db.process(1);
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let clock: i64 = db.admin.query_one(clock, &[]).await.unwrap().get(0);
    let mut last = clock.unsigned_abs();
    for key in ["k-1", "k-2"] {
        let store = process.store.clone();
        let run = process.once(key).run(move |lease| async move {
            drop(store.transaction(&lease).await?);
            Ok(lease.fence().map(|fence| fence.get()))
        });
        let Outcome::Ran(Some(fence)) = run.await.unwrap() else { panic!("{key} did not run") };
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_record_is_not_followed_by_a_commit() {
    let db = TestDatabase::new().await;
    let process = db.process(1);
    process.write("k-0").await;
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, signal, waits) = (process.store.clone(), Arc::clone(&written), Arc::clone(&go));
    let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        signal.notify_one();
        waits.notified().await;
        Ok("mine".to_owned())
    }));
    written.notified().await;
    db.admin.batch_execute(RECORD).await.unwrap();
    go.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(db.entries().await, ["k-0"]);
    // Its connection is still usable.
    assert!(matches!(process.write("k-2").await, Outcome::Ran(_)));
}

async fn named(process: &Process, caller: &str, key: &str) -> Outcome<u32> {
    let (caller, key) = (Caller::new(caller).unwrap(), Key::new(key).unwrap());
    let once = process.semel.once("orders", caller, key).on_unknown(OnUnknown::Rerun);
    let store = process.store.clone();
    let run = once.run(move |lease| async move {
        insert(&*store.transaction(&lease).await?, "once").await?;
        Ok(17)
    });
    run.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_and_keys_with_special_characters_are_recorded_unchanged() {
    let odd = [
        (r"o'brien'); COMMIT; --", r"k'1"),
        (r"back\slash \' \\", r"\';DROP/**/TABLE/**/semel_transactional;--"),
        ("größe 💶 $1 \"quoted\"", r#"$1"\x00"#),
    ];
    for conforming in ["on", "off"] {
        let db = TestDatabase::new().await;
        set(&db, &format!("standard_conforming_strings = {conforming}")).await;
        for (caller, key) in odd {
            let ran = named(&db.process(1), caller, key).await;
            assert!(matches!(ran, Outcome::Ran(17)), "{caller} {key}: {ran:?}");
            let again = named(&db.process(1), caller, key).await;
            assert!(matches!(again, Outcome::Replayed(17)), "{caller} {key}: {again:?}");
            let query = "SELECT FROM semel_transactional WHERE caller = $1 AND key = $2";
            assert_eq!(db.admin.query(query, &[&caller, &key]).await.unwrap().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_all_sizes_are_replayed() {
    let db = TestDatabase::new().await;
    let (here, there) = (db.process(1), db.process(1));
    for size in [0, 1, 300, 4000, 4096, 4200, 100_000] {
        let text = "ß'\\".chars().cycle().take(size).collect::<String>();
        let key = format!("key-{size}");
        let (store, value) = (here.store.clone(), text.clone());
        let run = here.once(&key).run(move |lease| async move {
            insert(&*store.transaction(&lease).await?, "once").await?;
            Ok(value)
        });
        assert!(matches!(run.await.unwrap(), Outcome::Ran(_)));
        let again = there.write(&key).await;
        assert!(matches!(&again, Outcome::Replayed(found) if *found == text), "{size}");
    }
    assert_eq!(db.entries().await.len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn deallocated_statements_are_prepared_again() {
    let db = TestDatabase::new().await;
    let pool = pool(&db.url, 1);
    let process = Process::uncached(PgDatabase::new(pool.clone()), pool);
    let large = async |key: &'static str| {
        let store = process.store.clone();
        let run = process.once(key).run(move |lease| async move {
            insert(&*store.transaction(&lease).await?, key).await?;
            Ok("x".repeat(10_000))
        });
        run.await.unwrap()
    };
    assert!(matches!(process.write("a").await, Outcome::Ran(_)));
    for (forget, [key, key_of_large]) in
        [("DEALLOCATE ALL", ["b", "large-b"]), ("DISCARD ALL", ["c", "large-c"])]
    {
        let forgets = async || {
            process.pool.get().await.unwrap().batch_execute(forget).await.unwrap();
        };
        for is_there in [false, true] {
            forgets().await;
            let outcome = process.write(key).await;
            assert_eq!(matches!(outcome, Outcome::Replayed(_)), is_there, "{forget}: {outcome:?}");
            forgets().await;
            let outcome = large(key_of_large).await;
            assert_eq!(matches!(outcome, Outcome::Replayed(_)), is_there, "{forget}: {outcome:?}");
        }
        forgets().await;
        assert_eq!(process.store.sweep(10).await.unwrap().done, 0);
    }
    assert_eq!(db.entries().await, ["a", "b", "c", "large-b", "large-c"]);
}

/// Another schema has such a table too.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_search_path_does_not_change_the_table() {
    let db = TestDatabase::new().await;
    let table = "CREATE SCHEMA tenant; \
                 CREATE TABLE tenant.semel_transactional \
                 (LIKE public.semel_transactional INCLUDING ALL)";
    db.admin.batch_execute(table).await.unwrap();
    let pool = pool(&db.url, 1);
    let process = Process::uncached(PgDatabase::new(pool.clone()), pool);
    for (key, size, set) in [
        ("a", 10, "SET LOCAL search_path = tenant, public"),
        ("b", 10_000, "SET LOCAL search_path = tenant, public"),
        ("c", 10, "SET search_path = tenant, public"),
        ("d", 10_000, "SET search_path = tenant, public"),
    ] {
        for is_there in [false, true] {
            let store = process.store.clone();
            let run = process.once(key).run(move |lease| async move {
                let tx = store.transaction(&lease).await?;
                tx.batch_execute(set).await?;
                insert(&tx, key).await?;
                Ok("x".repeat(size))
            });
            let outcome = run.await.unwrap();
            assert_eq!(matches!(outcome, Outcome::Replayed(_)), is_there, "{set}: {outcome:?}");
        }
    }
    let elsewhere = db.admin.query("SELECT FROM tenant.semel_transactional", &[]).await.unwrap();
    assert!(elsewhere.is_empty());
    assert_eq!(db.entries().await, ["a", "b", "c", "d"]);
}
