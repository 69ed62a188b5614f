//! A connection that is handed on from one operation to the next.

use std::{sync::Arc, time::Duration};

use semel::{OnceError, Outcome, joint::Database as _};
use semel_postgres::joint::PgDatabase;
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use crate::{
    bench::{Bench, PATIENCE, Process, insert, pool},
    message::RECORD,
};

fn process(bench: &Bench, connections: usize) -> Process {
    let pool = pool(&bench.url, connections);
    Process::of(PgDatabase::new(pool.clone()).handing_on(), pool)
}

/// An operation that has written its key and goes on when it is told.
async fn stopped(
    process: &Process,
    key: &'static str,
) -> (JoinHandle<Result<Outcome<String>, OnceError>>, Arc<Notify>) {
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, told, waits) = (process.store.clone(), Arc::clone(&written), Arc::clone(&go));
    let running = tokio::spawn(process.once(key).run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, key).await?;
        told.notify_one();
        waits.notified().await;
        Ok("done".to_owned())
    }));
    written.notified().await;
    (running, go)
}

/// How many operations have taken effect.
async fn committed(bench: &Bench) -> usize {
    bench.entries().await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_runs_once_and_the_pool_is_whole_afterwards() {
    let bench = Bench::new().await;
    let processes = [process(&bench, 2), process(&bench, 2)];
    let mut tasks = JoinSet::new();
    for number in 0..200 {
        // Every key twice, and mostly in two processes.
        let (process, key) = (processes[number % 2].clone(), format!("key-{:03}", number / 3));
        tasks.spawn(async move { process.write(&key).await });
    }
    let outcomes = tasks.join_all().await;
    let ran = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ran(_))).count();
    assert!(outcomes.iter().all(Outcome::is_final), "{outcomes:?}");
    assert_eq!((ran, committed(&bench).await), (67, 67));
    let open = "SELECT FROM pg_stat_activity \
                WHERE datname = current_database() AND state LIKE 'idle in tr%'";
    assert!(bench.admin.query(open, &[]).await.unwrap().is_empty());
    for process in processes {
        assert_eq!(process.pool.status().available, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_who_wait_for_the_pool_have_their_turn() {
    let bench = Bench::new().await;
    let process = process(&bench, 1);
    let mut tasks = JoinSet::new();
    for writer in 0..8 {
        let process = process.clone();
        tasks.spawn(async move {
            for number in 0.. {
                process.write(&format!("{writer}-{number}")).await;
            }
        });
    }
    while committed(&bench).await < 50 {
        tokio::task::yield_now().await;
    }
    for _ in 0..5 {
        let client = timeout(PATIENCE, process.pool.get()).await.unwrap().unwrap();
        client.query_one("SELECT 1", &[]).await.unwrap();
    }
    tasks.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waited_behind_a_record_that_is_refused_begins_by_themselves() {
    let bench = Bench::new().await;
    let process = process(&bench, 1);
    process.write("k-0").await;
    let (first, go) = stopped(&process, "k-1").await;
    let there = process.clone();
    let second = tokio::spawn(async move { there.write("k-2").await });
    while process.semel.in_flight() < 2 || process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    bench.admin.batch_execute(RECORD).await.unwrap();
    go.notify_one();
    let outcome = first.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert!(matches!(second.await.unwrap(), Outcome::Ran(_)));
    assert_eq!(bench.entries().await, ["k-0", "k-2"]);
}

/// A commit that takes its time.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.entry = 'slow') EXECUTE FUNCTION slow()";

#[tokio::test(flavor = "multi_thread")]
async fn what_was_begun_for_somebody_who_is_gone_is_undone() {
    let bench = Bench::new().await;
    bench.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let process = process(&bench, 1);
    let (first, go) = stopped(&process, "slow").await;
    let asleep = "SELECT FROM pg_stat_activity \
                  WHERE datname = current_database() AND wait_event = 'PgSleep'";
    // In line before the commit is sent, and gone before it is done.
    let (database, id) = (process.store.database().clone(), id("gone"));
    let gone = tokio::spawn(async move { database.begin(&id).await });
    while process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    bench.eventually(asleep).await;
    gone.abort();
    assert!(matches!(first.await.unwrap().unwrap(), Outcome::Ran(_)));
    let next = timeout(Duration::from_secs(10), process.write("gone")).await.unwrap();
    assert!(matches!(next, Outcome::Ran(_)), "{next:?}");
    assert_eq!(bench.entries().await, ["gone", "slow"]);
}

fn id(key: &str) -> semel::core::RecordId {
    use semel::core::{Caller, Key, RecordId, Scope};
    let (scope, caller) = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
    RecordId::new(scope, caller, Key::new(key).unwrap())
}
