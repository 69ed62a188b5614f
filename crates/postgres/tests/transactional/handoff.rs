//! Connections that are handed off from one operation to the next.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool};
use semel::{OnceError, Outcome, transactional::Database as _};
use semel_postgres::transactional::PgDatabase;
use semel_testkit::{servers, wire::Proxy};
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{Client, Config, NoTls};

use crate::{
    harness::{Process, TEST_TIMEOUT, TestDatabase, insert, pool},
    simple_query::RECORD,
};

fn process(db: &TestDatabase, connections: usize) -> Process {
    let pool = pool(&db.url, connections);
    Process::of(PgDatabase::new(pool.clone()).with_connection_handoff(), pool)
}

/// Starts an operation that inserts its key, runs another statement, and waits for a signal.
async fn paused(
    process: &Process,
    key: &'static str,
    statement: &'static str,
) -> (JoinHandle<Result<Outcome<String>, OnceError>>, Arc<Notify>) {
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, signal, waits) = (process.store.clone(), Arc::clone(&written), Arc::clone(&go));
    let running = tokio::spawn(process.once(key).run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, key).await?;
        tx.batch_execute(statement).await?;
        signal.notify_one();
        waits.notified().await;
        Ok("done".to_owned())
    }));
    written.notified().await;
    (running, go)
}

/// Starts tasks that each write one key after the other.
fn writers(process: &Process, count: u32) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for writer in 0..count {
        let process = process.clone();
        tasks.spawn(async move {
            for number in 0.. {
                process.write(&format!("{writer}-{number}")).await;
            }
        });
    }
    tasks
}

/// How many operations were committed.
async fn committed(db: &TestDatabase) -> usize {
    db.entries().await.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_runs_once_and_all_connections_return_to_the_pool() {
    let db = TestDatabase::new().await;
    let processes = [process(&db, 2), process(&db, 2)];
    let mut tasks = JoinSet::new();
    for number in 0..200 {
        // Every key three times, in both processes.
        let (process, key) = (processes[number % 2].clone(), format!("key-{:03}", number / 3));
        tasks.spawn(async move { process.write(&key).await });
    }
    let outcomes = tasks.join_all().await;
    let ran = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ran(_))).count();
    assert!(outcomes.iter().all(Outcome::is_final), "{outcomes:?}");
    assert_eq!((ran, committed(&db).await), (67, 67));
    let open = "SELECT FROM pg_stat_activity \
                WHERE datname = current_database() AND state LIKE 'idle in tr%'";
    assert!(db.admin.query(open, &[]).await.unwrap().is_empty());
    for process in processes {
        assert_eq!(process.pool.status().available, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_of_the_pool_get_a_connection() {
    let db = TestDatabase::new().await;
    let process = process(&db, 1);
    let mut tasks = writers(&process, 8);
    while committed(&db).await < 50 {
        tokio::task::yield_now().await;
    }
    for _ in 0..5 {
        let client = timeout(TEST_TIMEOUT, process.pool.get()).await.unwrap().unwrap();
        client.query_one("SELECT 1", &[]).await.unwrap();
    }
    tasks.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_begins_by_itself_if_the_hand_off_fails() {
    let db = TestDatabase::new().await;
    let process = process(&db, 1);
    process.write("k-0").await;
    let (first, go) = paused(&process, "k-1", "").await;
    let there = process.clone();
    let second = tokio::spawn(async move { there.write("k-2").await });
    while process.semel.in_flight() < 2 || process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    db.admin.batch_execute(RECORD).await.unwrap();
    go.notify_one();
    let outcome = first.await.unwrap().unwrap();
    assert!(!matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    assert!(matches!(second.await.unwrap(), Outcome::Ran(_)));
    assert_eq!(db.entries().await, ["k-0", "k-2"]);
}

/// A slow commit.
const SLOW_COMMIT: &str = "
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON ledger DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW WHEN (NEW.entry = 'slow') EXECUTE FUNCTION slow()";

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_for_a_cancelled_operation_is_rolled_back() {
    let db = TestDatabase::new().await;
    db.admin.batch_execute(SLOW_COMMIT).await.unwrap();
    let process = process(&db, 1);
    let (first, go) = paused(&process, "slow", "").await;
    let asleep = "SELECT FROM pg_stat_activity \
                  WHERE datname = current_database() AND wait_event = 'PgSleep'";
    // It is queued before the commit is sent, and cancelled before the commit is done.
    let (database, id) = (process.store.database().clone(), id("gone"));
    let gone = tokio::spawn(async move { database.begin(&id).await });
    while process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    db.eventually(asleep).await;
    gone.abort();
    assert!(matches!(first.await.unwrap().unwrap(), Outcome::Ran(_)));
    let next = timeout(Duration::from_secs(10), process.write("gone")).await.unwrap();
    assert!(matches!(next, Outcome::Ran(_)), "{next:?}");
    assert_eq!(db.entries().await, ["gone", "slow"]);
}

/// The part of the message after the commit fails: the next operation cannot begin.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_commit_does_not_count_as_one_before() {
    let db = TestDatabase::new().await;
    let broken = "CREATE SCHEMA broken; \
                  CREATE FUNCTION broken.pg_try_advisory_xact_lock(bigint) RETURNS boolean \
                  LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no lock'; END $$";
    db.admin.batch_execute(broken).await.unwrap();
    let process = process(&db, 1);
    let set = "SET search_path = broken, pg_catalog, public";
    let (first, go) = paused(&process, "first", set).await;
    let there = process.clone();
    let second = tokio::spawn(async move { there.try_to_write("second").await });
    while process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    let outcome = first.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    // It runs on another connection.
    assert!(matches!(second.await.unwrap(), Ok(Outcome::Ran(_))));
    assert_eq!(db.entries().await, ["first", "second"]);
}

/// Opens connections slow.
struct SlowConnect(Arc<AtomicU32>);

type Connected = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for SlowConnect {
    fn connect(&self, config: &Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let config = config.clone();
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (client, connection) = config.connect(NoTls).await?;
            // The latency of a slow connection.
            sleep(Duration::from_millis(100)).await;
            let task = tokio::spawn(async move { drop(connection.await) });
            Ok((client, task))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_offs_do_not_keep_the_pool_from_growing() {
    let db = TestDatabase::new().await;
    let made = Arc::new(AtomicU32::new(0));
    let (config, slow) = (db.url.parse().unwrap(), SlowConnect(Arc::clone(&made)));
    let manager = Manager::from_connect(config, slow, ManagerConfig::default());
    let pool = Pool::builder(manager).max_size(4).build().unwrap();
    let process = Process::of(PgDatabase::new(pool.clone()).with_connection_handoff(), pool);
    process.write("first").await;
    let mut tasks = writers(&process, 8);
    let grown = async {
        while process.pool.status().size < 4 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TEST_TIMEOUT, grown).await.expect("all connections are made");
    // Real time must pass: three times the latency of an attempt that would replace a cancelled
    // one.
    sleep(Duration::from_millis(300)).await;
    tasks.shutdown().await;
    assert_eq!(made.load(Ordering::Relaxed), 4, "no attempt was cancelled");
}

/// How long connections are cut.
fn cut_duration() -> Duration {
    Duration::from_secs(if semel_testkit::torture() { 60 } else { 4 })
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_cut_connections_during_hand_offs_run_each_key_once() {
    let db = TestDatabase::new().await;
    let server = servers::postgres();
    let proxy = Proxy::start(server.port());
    let (direct, cut) = (format!(":{}/", server.port()), format!(":{}/", proxy.port()));
    let url = db.url.replace(&direct, &cut);
    let processes = [(); 2].map(|()| {
        let pool = pool(&url, 2);
        Process::uncached(PgDatabase::new(pool.clone()).with_connection_handoff(), pool)
    });
    let end = Instant::now() + cut_duration();
    let mut tasks = JoinSet::new();
    for client in 0..12 {
        let processes = processes.clone();
        tasks.spawn(async move {
            let mut keys = Vec::new();
            while Instant::now() < end {
                let key = format!("{client:02}-{:05}", keys.len());
                until_done(&processes, &key).await;
                keys.push(key);
            }
            keys
        });
    }
    while Instant::now() < end {
        sleep(Duration::from_millis(60)).await;
        proxy.cut();
    }
    let mut keys = tasks.join_all().await.concat();
    keys.sort();
    println!("{} keys through connections that were cut", keys.len());
    assert_eq!(db.entries().await, keys);
    let calm = db.process(2);
    for key in &keys {
        assert!(matches!(calm.write(key).await, Outcome::Replayed(_)), "{key}");
    }
}

/// Retries in alternating processes until the key is done; some attempts are cancelled, as by a
/// client that hangs up.
async fn until_done(processes: &[Process; 2], key: &str) {
    for number in 0..400 {
        let (process, other) = (&processes[number % 2], &processes[(number + 1) % 2]);
        if number % 3 == 1 {
            let _ = timeout(Duration::from_millis(3), other.try_to_write(key)).await;
        }
        if process.try_to_write(key).await.is_ok_and(|outcome| outcome.is_final()) {
            return;
        }
    }
    panic!("{key} is never done");
}

fn id(key: &str) -> semel::core::RecordId {
    use semel::core::{Caller, Key, RecordId, Scope};
    let (scope, caller) = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
    RecordId::new(scope, caller, Key::new(key).unwrap())
}
