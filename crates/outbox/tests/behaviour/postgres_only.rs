//! What only PostgreSQL can get wrong: foreign transactions, restores, retention, plans.

use std::{process::Command, time::Duration};

use semel_outbox::{OutgoingMessage, Relay, postgres};
use semel_testkit::servers::{self, Postgres};

use crate::{
    backend::{Backend, LEASE, PgBackend, RunningRelay, message},
    test_sink::{TestSink, failed},
};

impl PgBackend {
    async fn number(&self, sql: &str) -> i64 {
        self.pool.get().await.unwrap().query_one(sql, &[]).await.unwrap().get(0)
    }
}

fn numbered(range: std::ops::Range<u32>) -> Vec<OutgoingMessage> {
    range.map(|number| message(&format!("key {}", number % 50), &number.to_string())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_transaction_delays_nothing() {
    let backend = PgBackend::fresh().await;
    let foreign = backend.pool.get().await.unwrap();
    foreign
        .batch_execute(
            "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE TABLE foreign_table (id int);
             SELECT count(*) FROM semel_outbox_message",
        )
        .await
        .unwrap();
    let sink = TestSink::default();
    let relay = backend.relay(sink.clone());
    for round in 0..20_u32 {
        backend.send(&numbered(round * 100..round * 100 + 100)).await;
        sink.wait(|sink| sink.payloads().len() == (round as usize + 1) * 100).await;
    }
    relay.stop().await;
    assert_eq!(sink.attempts(), 2000, "each is delivered once");
    // Rows of the buckets are updated in the interval of saving, whatever the rate of messages.
    foreign.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_sent_early_and_commits_late_is_delivered() {
    let backend = PgBackend::fresh().await;
    let sink = TestSink::default();
    let relay = backend.relay(sink.clone());
    let mut client = backend.pool.get().await.unwrap();
    let late = client.transaction().await.unwrap();
    postgres::send(late.client(), &message("late", "late")).await.unwrap();
    for round in 1..=5 {
        backend.send(&[message("early", &round.to_string())]).await;
        sink.wait(|sink| sink.payloads().len() == round).await;
    }
    late.commit().await.unwrap();
    sink.wait(|sink| sink.payloads().ends_with(&["late".to_owned()])).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_share_the_buckets() {
    let backend = PgBackend::fresh().await;
    let sinks = [TestSink::default(), TestSink::default(), TestSink::default()];
    let relays: Vec<_> = sinks.iter().map(|sink| backend.relay(sink.clone())).collect();
    let shares = "SELECT count(*) FROM (SELECT owner FROM semel_outbox_bucket
        WHERE owner IS NOT NULL GROUP BY owner HAVING count(*) BETWEEN 20 AND 22) AS shares";
    while backend.number(shares).await < 3 {
        tokio::time::sleep(LEASE / 10).await;
    }
    backend.send(&numbered(0..500)).await;
    let all = || sinks.iter().map(|sink| sink.payloads().len()).sum::<usize>();
    while all() < 500 {
        tokio::time::sleep(LEASE / 10).await;
    }
    assert!(sinks.iter().all(|sink| !sink.payloads().is_empty()));
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(all(), 500, "each is delivered once");
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_messages_are_truncated_after_their_retention_and_others_are_kept() {
    let backend = PgBackend::fresh().await;
    let sink = TestSink::default();
    sink.fail("bad", failed());
    let outbox = || backend.store().retention(Duration::from_millis(1));
    backend.send(&numbered(0..100)).await;
    // The sweep at the start of a relay turns the ring once, and truncates what was delivered
    // before.
    let mut sent = 100;
    while backend.number("SELECT count(*) FROM semel_outbox_message WHERE number <= 100").await > 0
    {
        assert!(sent < 110, "nothing is truncated");
        let relay = RunningRelay::start(Relay::new(outbox(), sink.clone()));
        backend.send(&numbered(sent..sent + 1)).await;
        sent += 1;
        sink.wait(|sink| sink.payloads().len() as u32 == sent).await;
        relay.stop().await;
    }
    assert_eq!(sink.attempts(), sent, "nothing is lost or repeated");
    // A part with an undelivered message is not truncated, however old it is.
    backend.send(&[message("waiting", "undelivered")]).await;
    let before = backend.number("SELECT count(*) FROM semel_outbox_message").await;
    let mut idle = outbox();
    for _ in 0..6 {
        semel_outbox::RelayStore::sweep(&mut idle).await.unwrap();
    }
    let undelivered = "SELECT count(*) FROM semel_outbox_message WHERE key = 'waiting'";
    assert_eq!(backend.number(undelivered).await, 1, "{before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_restored_into_another_cluster_goes_on() {
    let origin = PgBackend::fresh().await;
    // The clusters differ by many transactions, and the new one is behind.
    let burn = "DO $$ BEGIN FOR i IN 1..3000 LOOP
        PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$";
    origin.pool.get().await.unwrap().batch_execute(burn).await.unwrap();
    let sink = TestSink::default();
    let relay = origin.relay(sink.clone());
    origin.send(&numbered(0..300)).await;
    sink.wait(|sink| sink.payloads().len() == 300).await;
    relay.stop().await;
    origin.send(&numbered(300..700)).await;
    let name: String = origin
        .pool
        .get()
        .await
        .unwrap()
        .query_one("SELECT current_database()::text", &[])
        .await
        .unwrap()
        .get(0);
    let other = Postgres::start(&[]);
    copy(&servers::postgres().url(&name), &other.url("postgres"));

    // The service writes to the restored database before a relay knows it, and one writer is late.
    let restored = PgBackend::at(&other.url("postgres")).await;
    restored.send(&numbered(700..800)).await;
    let mut client = restored.pool.get().await.unwrap();
    let late = client.transaction().await.unwrap();
    postgres::send(late.client(), &message("late", "late")).await.unwrap();
    let after = TestSink::default();
    let relay = restored.relay(after.clone());
    after.wait(|sink| sink.payloads().len() == 500).await;
    late.commit().await.unwrap();
    restored.send(&numbered(800..900)).await;
    after.wait(|sink| sink.payloads().len() == 601).await;
    relay.stop().await;
    let mut delivered: Vec<u32> =
        after.payloads().iter().filter_map(|payload| payload.parse().ok()).collect();
    for key in 0..50 {
        let of_key: Vec<_> = delivered.iter().filter(|number| *number % 50 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    delivered.sort_unstable();
    assert!(delivered.into_iter().eq(300..900), "nothing is lost, and nothing saved is repeated");
}

/// Dumps a database and restores it in another cluster.
fn copy(from: &str, to: &str) {
    let programs = "/usr/lib/postgresql/15/bin";
    let dump = Command::new(format!("{programs}/pg_dump")).arg(from).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("dump.sql");
    std::fs::write(&file, &dump.stdout).unwrap();
    let mut restore = Command::new(format!("{programs}/psql"));
    restore.args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file"]).arg(&file).arg(to);
    let restored = restore.output().unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_of_a_relay_scans_the_messages_and_none_notifies() {
    let server = Postgres::start(&[
        ("session_preload_libraries", "auto_explain"),
        ("auto_explain.log_min_duration", "0"),
        ("auto_explain.log_nested_statements", "on"),
        ("log_statement", "all"),
    ]);
    let backend = PgBackend::at(&server.url("postgres")).await;
    let fill = "INSERT INTO semel_outbox_message
        SELECT nextval('semel_outbox_number'), 0, n % 64, pg_current_xact_id(),
            gen_random_uuid(), 'orders', 'key ' || n % 1000, '', clock_timestamp()
        FROM generate_series(1, 50000) AS n";
    backend.pool.get().await.unwrap().batch_execute(fill).await.unwrap();
    let sink = TestSink::default();
    let relay = RunningRelay::start(Relay::new(
        backend.store().retention(Duration::from_millis(1)),
        sink.clone(),
    ));
    sink.wait(|sink| sink.payloads().len() == 50_000).await;
    backend.send(&numbered(0..1)).await;
    sink.wait(|sink| sink.payloads().len() == 50_001).await;
    backend.backlog().await;
    relay.stop().await;
    let log = server.log();
    assert!(
        log.contains("Index Scan using semel_outbox_message_0_bucket_number_idx"),
        "plans are logged"
    );
    let scans: Vec<_> =
        log.lines().filter(|line| line.contains("Seq Scan on semel_outbox_message_0")).collect();
    assert!(scans.is_empty(), "{scans:#?}");
    assert!(!log.to_lowercase().contains("statement: notify"));
    assert!(!log.contains("pg_notify"));
}
