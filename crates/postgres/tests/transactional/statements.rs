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

/// Copies the record of the key `k-0` to the key `k-1`, as if another process had committed it. The
/// constant is the digest of scope, caller and key.
const INSERT_COPY_AS_K1: &str = "
    INSERT INTO semel_transactional
    SELECT 'b419559d-4e0b-e293-4315-76a3e9cd8550', scope, caller, 'k-1',
        fingerprint, fence, answer, recorded_at, expires_at
    FROM semel_transactional WHERE key = 'k-0'";

/// Shadows `pg_try_advisory_xact_lock` with a function that first sleeps for half a second, so that
/// another process can commit a record between the snapshot and the lock.
const SLOW_LOCK: &str = "
    CREATE SCHEMA slow;
    CREATE FUNCTION slow.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN pg_catalog.pg_try_advisory_xact_lock($1); END $$";

const BACKENDS_IN_SLOW_LOCK: &str = "SELECT FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

async fn set_database_option(db: &TestDatabase, setting: &str) {
    let name = db.url.rsplit('/').next().unwrap();
    let set = format!("ALTER DATABASE \"{name}\" SET {setting}");
    db.admin.batch_execute(&set).await.unwrap();
}

/// At isolation levels above READ COMMITTED the snapshot is taken before the lock, so it could miss
/// a record that is committed in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_committed_before_the_lock_is_granted_is_replayed() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let db = TestDatabase::new().await;
        db.process(1).write("k-0").await;
        db.admin.batch_execute(SLOW_LOCK).await.unwrap();
        set_database_option(&db, "search_path = slow, pg_catalog, public").await;
        set_database_option(&db, &format!("default_transaction_isolation = '{isolation}'")).await;
        let process = db.process(1);
        let (store, runs) = (process.store.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&runs);
        let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
            counted.fetch_add(1, Ordering::Relaxed);
            insert(&*store.transaction(&lease).await?, "twice").await?;
            Ok("twice".to_owned())
        }));
        db.eventually(BACKENDS_IN_SLOW_LOCK).await;
        db.admin.batch_execute(INSERT_COPY_AS_K1).await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        let is_replayed = matches!(&outcome, Outcome::Replayed(text) if text == "k-0");
        assert!(is_replayed, "{isolation}: {outcome:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 0, "{isolation}");
        assert_eq!(db.entries().await, ["k-0"], "{isolation}");
    }
}

/// To begin again with a newer snapshot the session takes a session-level lock; it must release
/// that lock.
#[tokio::test(flavor = "multi_thread")]
async fn above_read_committed_no_lock_outlives_its_transaction() {
    let db = TestDatabase::new().await;
    set_database_option(&db, "default_transaction_isolation = 'repeatable read'").await;
    let process = db.process(1);
    for key in ["k-0", "k-1", "k-2"] {
        assert!(matches!(process.write(key).await, Outcome::Ran(_)));
    }
    let locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(db.admin.query(locks, &[]).await.unwrap().len(), 0);
    assert_eq!(db.entries().await, ["k-0", "k-1", "k-2"]);
}

/// If fences were transaction ids, they would repeat after a failover that lost transactions.
#[tokio::test(flavor = "multi_thread")]
async fn fences_increase_and_are_later_than_the_wall_clock() {
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
async fn a_transaction_whose_record_already_exists_is_rolled_back() {
    let db = TestDatabase::new().await;
    let process = db.process(1);
    process.write("k-0").await;
    let (written, resume) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let store = process.store.clone();
    let (written_by_run, resumed) = (Arc::clone(&written), Arc::clone(&resume));
    let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        written_by_run.notify_one();
        resumed.notified().await;
        Ok("mine".to_owned())
    }));
    written.notified().await;
    db.admin.batch_execute(INSERT_COPY_AS_K1).await.unwrap();
    resume.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(db.entries().await, ["k-0"]);
    // The connection of the rolled-back transaction is still usable.
    assert!(matches!(process.write("k-2").await, Outcome::Ran(_)));
}

async fn run_once_as(process: &Process, caller: &str, key: &str) -> Outcome<u32> {
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
        set_database_option(&db, &format!("standard_conforming_strings = {conforming}")).await;
        for (caller, key) in odd {
            let ran = run_once_as(&db.process(1), caller, key).await;
            assert!(matches!(ran, Outcome::Ran(17)), "{caller} {key}: {ran:?}");
            let again = run_once_as(&db.process(1), caller, key).await;
            assert!(matches!(again, Outcome::Replayed(17)), "{caller} {key}: {again:?}");
            let query = "SELECT FROM semel_transactional WHERE caller = $1 AND key = $2";
            assert_eq!(db.admin.query(query, &[&caller, &key]).await.unwrap().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_all_sizes_are_replayed() {
    let db = TestDatabase::new().await;
    let (first_process, second_process) = (db.process(1), db.process(1));
    for size in [0, 1, 300, 4000, 4096, 4200, 100_000] {
        let text = "ß'\\".chars().cycle().take(size).collect::<String>();
        let key = format!("key-{size}");
        let (store, value) = (first_process.store.clone(), text.clone());
        let run = first_process.once(&key).run(move |lease| async move {
            insert(&*store.transaction(&lease).await?, "once").await?;
            Ok(value)
        });
        assert!(matches!(run.await.unwrap(), Outcome::Ran(_)));
        let again = second_process.write(&key).await;
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
    for (discard_sql, [key, key_of_large]) in
        [("DEALLOCATE ALL", ["b", "large-b"]), ("DISCARD ALL", ["c", "large-c"])]
    {
        let discard_statements = async || {
            process.pool.get().await.unwrap().batch_execute(discard_sql).await.unwrap();
        };
        for expects_replay in [false, true] {
            discard_statements().await;
            let outcome = process.write(key).await;
            assert_eq!(
                matches!(outcome, Outcome::Replayed(_)),
                expects_replay,
                "{discard_sql}: {outcome:?}"
            );
            discard_statements().await;
            let outcome = large(key_of_large).await;
            assert_eq!(
                matches!(outcome, Outcome::Replayed(_)),
                expects_replay,
                "{discard_sql}: {outcome:?}"
            );
        }
        discard_statements().await;
        assert_eq!(process.store.sweep(10).await.unwrap().done, 0);
    }
    assert_eq!(db.entries().await, ["a", "b", "c", "large-b", "large-c"]);
}

/// A schema on the search path has a `semel_transactional` table of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_search_path_does_not_redirect_records_to_another_schema() {
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
        for expects_replay in [false, true] {
            let store = process.store.clone();
            let run = process.once(key).run(move |lease| async move {
                let tx = store.transaction(&lease).await?;
                tx.batch_execute(set).await?;
                insert(&tx, key).await?;
                Ok("x".repeat(size))
            });
            let outcome = run.await.unwrap();
            assert_eq!(
                matches!(outcome, Outcome::Replayed(_)),
                expects_replay,
                "{set}: {outcome:?}"
            );
        }
    }
    let elsewhere = db.admin.query("SELECT FROM tenant.semel_transactional", &[]).await.unwrap();
    assert!(elsewhere.is_empty());
    assert_eq!(db.entries().await, ["a", "b", "c", "d"]);
}
