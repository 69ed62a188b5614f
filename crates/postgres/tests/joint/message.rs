//! What begins an operation is one message, and so is what ends it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use deadpool_postgres::{ClientWrapper, Hook, HookError, Manager, Pool};
use semel::{
    Outcome,
    core::{Caller, Key, OnUnknown, Store as _},
};
use semel_postgres::joint::PgDatabase;
use tokio::sync::Notify;
use tokio_postgres::NoTls;

use crate::bench::{Bench, Process, insert, pool};

/// The record of the key `k-1`, as another program would have written it.
pub(crate) const RECORD: &str = "
    INSERT INTO semel_joint SELECT 'b419559d-4e0b-e293-4315-76a3e9cd8550', scope, caller, 'k-1',
        fingerprint, fence, answer, recorded_at, expires_at FROM semel_joint WHERE key = 'k-0'";

/// A lock that is granted only after a while, as it is to one who asks while its owner commits.
const SLOW_LOCK: &str = "
    CREATE SCHEMA slow;
    CREATE FUNCTION slow.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN pg_catalog.pg_try_advisory_xact_lock($1); END $$";

const THOSE_THAT_LOCK: &str = "SELECT FROM pg_stat_activity \
     WHERE datname = current_database() AND wait_event = 'PgSleep'";

async fn set(bench: &Bench, setting: &str) {
    let name = bench.url.rsplit('/').next().unwrap();
    let set = format!("ALTER DATABASE \"{name}\" SET {setting}");
    bench.admin.batch_execute(&set).await.unwrap();
}

/// Above read committed the statement that takes the lock has its snapshot before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_came_before_the_lock_is_seen() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let bench = Bench::new().await;
        bench.process(1).write("k-0").await;
        bench.admin.batch_execute(SLOW_LOCK).await.unwrap();
        set(&bench, "search_path = slow, pg_catalog, public").await;
        set(&bench, &format!("default_transaction_isolation = '{isolation}'")).await;
        let process = bench.process(1);
        let (store, runs) = (process.store.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&runs);
        let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
            counted.fetch_add(1, Ordering::Relaxed);
            insert(&*store.transaction(&lease).await?, "twice").await?;
            Ok("twice".to_owned())
        }));
        bench.eventually(THOSE_THAT_LOCK).await;
        bench.admin.batch_execute(RECORD).await.unwrap();
        let outcome = run.await.unwrap().unwrap();
        let seen = matches!(&outcome, Outcome::Replayed(text) if text == "k-0");
        assert!(seen, "{isolation}: {outcome:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 0, "{isolation}");
        assert_eq!(bench.entries().await, ["k-0"], "{isolation}");
    }
}

/// The session gives up what it took to begin again.
#[tokio::test(flavor = "multi_thread")]
async fn above_read_committed_no_lock_outlives_its_transaction() {
    let bench = Bench::new().await;
    set(&bench, "default_transaction_isolation = 'repeatable read'").await;
    let process = bench.process(1);
    for key in ["k-0", "k-1", "k-2"] {
        assert!(matches!(process.write(key).await, Outcome::Ran(_)));
    }
    let locks = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(bench.admin.query(locks, &[]).await.unwrap().len(), 0);
    assert_eq!(bench.entries().await, ["k-0", "k-1", "k-2"]);
}

/// The number of a transaction would repeat after a failover that lost some.
#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_at_least_the_wall_clock() {
    let bench = Bench::new().await;
    let process = bench.process(1);
    let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    let clock: i64 = bench.admin.query_one(clock, &[]).await.unwrap().get(0);
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
async fn a_record_that_is_refused_is_not_followed_by_a_commit() {
    let bench = Bench::new().await;
    let process = bench.process(1);
    process.write("k-0").await;
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, told, waits) = (process.store.clone(), Arc::clone(&written), Arc::clone(&go));
    let run = tokio::spawn(process.once("k-1").run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, "undone").await?;
        told.notify_one();
        waits.notified().await;
        Ok("mine".to_owned())
    }));
    written.notified().await;
    bench.admin.batch_execute(RECORD).await.unwrap();
    go.notify_one();
    let outcome = run.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert_eq!(bench.entries().await, ["k-0"]);
    // Its connection is as good as new.
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
async fn callers_and_keys_are_recorded_as_they_are_whatever_they_consist_of() {
    let odd = [
        (r"o'brien'); COMMIT; --", r"k'1"),
        (r"back\slash \' \\", r"\';DROP/**/TABLE/**/semel_joint;--"),
        ("größe 💶 $1 \"quoted\"", r#"$1"\x00"#),
    ];
    for conforming in ["on", "off"] {
        let bench = Bench::new().await;
        set(&bench, &format!("standard_conforming_strings = {conforming}")).await;
        for (caller, key) in odd {
            let ran = named(&bench.process(1), caller, key).await;
            assert!(matches!(ran, Outcome::Ran(17)), "{caller} {key}: {ran:?}");
            let again = named(&bench.process(1), caller, key).await;
            assert!(matches!(again, Outcome::Replayed(17)), "{caller} {key}: {again:?}");
            let query = "SELECT FROM semel_joint WHERE caller = $1 AND key = $2";
            assert_eq!(bench.admin.query(query, &[&caller, &key]).await.unwrap().len(), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_replayed_whatever_its_size() {
    let bench = Bench::new().await;
    let (here, there) = (bench.process(1), bench.process(1));
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
    assert_eq!(bench.entries().await.len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_that_are_gone_are_made_again_or_not_missed() {
    let bench = Bench::new().await;
    let pool = pool(&bench.url, 1);
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
    assert_eq!(bench.entries().await, ["a", "b", "c", "large-b", "large-c"]);
}

/// Where another schema has such a table too.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_goes_where_it_is_looked_for_whatever_the_search_path() {
    let bench = Bench::new().await;
    let table = "CREATE SCHEMA tenant; \
                 CREATE TABLE tenant.semel_joint (LIKE public.semel_joint INCLUDING ALL)";
    bench.admin.batch_execute(table).await.unwrap();
    let pool = pool(&bench.url, 1);
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
    let elsewhere = bench.admin.query("SELECT FROM tenant.semel_joint", &[]).await.unwrap();
    assert!(elsewhere.is_empty());
    assert_eq!(bench.entries().await, ["a", "b", "c", "d"]);
}

/// As behind a pooler: a connection is new to its pool, and the statements are there already.
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_are_there_already_are_used() {
    let bench = Bench::new().await;
    let first = bench.process(1);
    assert!(matches!(first.write("a").await, Outcome::Ran(_)));
    let query = "SELECT statement FROM pg_prepared_statements WHERE name LIKE 'semel_joint_%'";
    let rows = first.pool.get().await.unwrap().query(query, &[]).await.unwrap();
    assert_eq!(rows.len(), 3);
    // What the server has kept is the whole message in which they were made.
    let message: String = rows[0].get(0);
    let (_, made) = message.split_once("PREPARE ").unwrap();
    let made: Arc<str> = format!("PREPARE {}", made.split_once("EXECUTE ").unwrap().0).into();
    let hook = Hook::async_fn(move |client: &mut ClientWrapper, _| {
        let made = Arc::clone(&made);
        Box::pin(async move { client.batch_execute(&made).await.map_err(HookError::Backend) })
    });
    let manager = Manager::new(bench.url.parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).max_size(1).post_create(hook).build().unwrap();
    let second = Process::on(pool);
    assert!(matches!(second.write("b").await, Outcome::Ran(_)));
    assert!(matches!(second.write("a").await, Outcome::Replayed(_)));
}
