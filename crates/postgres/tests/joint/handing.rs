//! A connection that is handed on from one operation to the next.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Pool};
use semel::{OnceError, Outcome, joint::Database as _};
use semel_postgres::joint::PgDatabase;
use semel_testkit::{servers, wire::Proxy};
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_postgres::{Client, Config, NoTls};

use crate::{
    bench::{Bench, PATIENCE, Process, insert, pool},
    message::RECORD,
};

fn process(bench: &Bench, connections: usize) -> Process {
    let pool = pool(&bench.url, connections);
    Process::of(PgDatabase::new(pool.clone()).handing_on(), pool)
}

/// An operation that has written its key, has done something else, and goes on when it is told.
async fn stopped(
    process: &Process,
    key: &'static str,
    besides: &'static str,
) -> (JoinHandle<Result<Outcome<String>, OnceError>>, Arc<Notify>) {
    let (written, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (store, told, waits) = (process.store.clone(), Arc::clone(&written), Arc::clone(&go));
    let running = tokio::spawn(process.once(key).run(move |lease| async move {
        let tx = store.transaction(&lease).await?;
        insert(&tx, key).await?;
        tx.batch_execute(besides).await?;
        told.notify_one();
        waits.notified().await;
        Ok("done".to_owned())
    }));
    written.notified().await;
    (running, go)
}

/// So many who write one key after the other.
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
    let mut tasks = writers(&process, 8);
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
    let (first, go) = stopped(&process, "k-1", "").await;
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
    let (first, go) = stopped(&process, "slow", "").await;
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

/// What comes after the commit in its message fails: the next one cannot begin.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_after_the_commit_is_not_taken_for_one_before() {
    let bench = Bench::new().await;
    let broken = "CREATE SCHEMA broken; \
                  CREATE FUNCTION broken.pg_try_advisory_xact_lock(bigint) RETURNS boolean \
                  LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no lock'; END $$";
    bench.admin.batch_execute(broken).await.unwrap();
    let process = process(&bench, 1);
    let set = "SET search_path = broken, pg_catalog, public";
    let (first, go) = stopped(&process, "first", set).await;
    let there = process.clone();
    let second = tokio::spawn(async move { there.try_to_write("second").await });
    while process.pool.status().waiting < 1 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    let outcome = first.await.unwrap().unwrap();
    assert!(matches!(outcome, Outcome::Ran(_)), "{outcome:?}");
    // Where nothing can begin, nothing does; on another connection it runs.
    assert!(matches!(second.await.unwrap(), Ok(Outcome::Ran(_))));
    assert_eq!(bench.entries().await, ["first", "second"]);
}

/// Connections that take their time to be made.
struct Slowly(Arc<AtomicU32>);

type Connected = Result<(Client, JoinHandle<()>), tokio_postgres::Error>;

impl Connect for Slowly {
    fn connect(&self, config: &Config) -> Pin<Box<dyn Future<Output = Connected> + Send + '_>> {
        let config = config.clone();
        Box::pin(async move {
            self.0.fetch_add(1, Ordering::Relaxed);
            let (client, connection) = config.connect(NoTls).await?;
            sleep(Duration::from_millis(100)).await;
            let task = tokio::spawn(async move { drop(connection.await) });
            Ok((client, task))
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_can_grow_is_let_grow() {
    let bench = Bench::new().await;
    let made = Arc::new(AtomicU32::new(0));
    let (config, slowly) = (bench.url.parse().unwrap(), Slowly(Arc::clone(&made)));
    let manager = Manager::from_connect(config, slowly, ManagerConfig::default());
    let pool = Pool::builder(manager).max_size(4).build().unwrap();
    let process = Process::of(PgDatabase::new(pool.clone()).handing_on(), pool);
    process.write("first").await;
    let mut tasks = writers(&process, 8);
    let grown = async {
        while process.pool.status().size < 4 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, grown).await.expect("all connections are made");
    sleep(Duration::from_millis(300)).await;
    tasks.shutdown().await;
    assert_eq!(made.load(Ordering::Relaxed), 4, "none was begun in vain");
}

/// How long the wire is cut again and again.
fn of_cuts() -> Duration {
    Duration::from_secs(if semel_testkit::torture() { 60 } else { 4 })
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_of_the_wire_while_connections_are_handed_on_runs_each_key_once() {
    let bench = Bench::new().await;
    let server = servers::postgres();
    let proxy = Proxy::start(server.port());
    let (direct, cut) = (format!(":{}/", server.port()), format!(":{}/", proxy.port()));
    let url = bench.url.replace(&direct, &cut);
    let processes = [(); 2].map(|()| {
        let pool = pool(&url, 2);
        Process::uncached(PgDatabase::new(pool.clone()).handing_on(), pool)
    });
    let end = Instant::now() + of_cuts();
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
    println!("{} keys through a wire that was cut", keys.len());
    assert_eq!(bench.entries().await, keys);
    let calm = bench.process(2);
    for key in &keys {
        assert!(matches!(calm.write(key).await, Outcome::Replayed(_)), "{key}");
    }
}

/// Tries until it is told that it is done, in one process and in the other; now and then beside
/// itself, as a client that hangs up.
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
