//! Rates under pressure: a foreign transaction, a stuck key, a large backlog; latency; the cost of
//! `send`. The short edition shows that everything arrives and prints the figures; the long one
//! asserts the ratios.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "figures are printed")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use semel_outbox::{
    Delivery, OutboxMessage, OutgoingMessage, Relay, RelayWaker, Sink,
    postgres::{self, PgOutbox},
};
use semel_testkit::{servers::Postgres, torture};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, interval, sleep, timeout},
};
use tokio_postgres::{Config, NoTls};

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(3600);

/// Counts messages, and refuses to deliver those of the key `stuck`.
#[derive(Debug, Default)]
struct CountingSink {
    delivered: AtomicU64,
    ages: Mutex<Vec<Duration>>,
}

#[async_trait]
impl Sink for CountingSink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        if message.key.as_deref() == Some("stuck") {
            return Delivery::Failed { reason: "stuck".to_owned(), after: None };
        }
        if message.topic == "timed" {
            self.ages.lock().unwrap().push(message.age);
        }
        self.delivered.fetch_add(1, Ordering::Relaxed);
        Delivery::Delivered
    }
}

impl CountingSink {
    async fn wait(&self, count: u64) {
        let waiting = async {
            while self.delivered.load(Ordering::Relaxed) < count {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(DELIVERY_TIMEOUT, waiting).await.unwrap();
    }
}

struct Rig {
    server: Postgres,
    pool: Pool,
}

struct RunningRelay {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    waker: RelayWaker,
}

impl Rig {
    async fn new() -> Self {
        let server = Postgres::start(&[]);
        let config: Config = server.url("postgres").parse().unwrap();
        let pool = Pool::builder(Manager::new(config, NoTls)).max_size(40).build().unwrap();
        postgres::create_tables(&pool.get().await.unwrap()).await.unwrap();
        Self { server, pool }
    }

    /// Adds a backlog of so many messages on so many keys.
    async fn fill(&self, messages: u64, keys: u64) {
        let sql = format!(
            "INSERT INTO semel_outbox_message
            SELECT nextval('semel_outbox_number'), 0, n % {keys} & 63, pg_current_xact_id(),
                gen_random_uuid(), 'orders', 'key ' || n % {keys}, '{{\"cents\":4900}}',
                clock_timestamp()
            FROM generate_series(1, {messages}) AS n"
        );
        self.pool.get().await.unwrap().batch_execute(&sql).await.unwrap();
    }

    fn relay(&self, sink: &Arc<CountingSink>) -> RunningRelay {
        let (stop, stopped) = oneshot::channel::<()>();
        let relay = Relay::new(PgOutbox::new(self.pool.clone()), Arc::clone(sink));
        let waker = relay.waker();
        let task = tokio::spawn(relay.run(async move { drop(stopped.await) }));
        RunningRelay { stop, task, waker }
    }

    /// Messages a second for a backlog of this size.
    async fn rate(&self, messages: u64) -> f64 {
        self.fill(messages, 10_000).await;
        let sink = Arc::<CountingSink>::default();
        let relay = self.relay(&sink);
        sink.wait(1).await;
        let begun = Instant::now();
        sink.wait(messages).await;
        let rate = messages as f64 / begun.elapsed().as_secs_f64();
        relay.stop().await;
        rate
    }
}

impl RunningRelay {
    async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }
}

fn assert_ratio(name: &str, rate: f64, before: f64, at_least: f64) {
    println!("{name}: {rate:.0}/s, {:.2} of {before:.0}/s", rate / before);
    assert!(!torture() || rate >= at_least * before, "{name}: below {at_least}");
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_a_foreign_transaction_and_a_stuck_key_leave_the_rate() {
    let (messages, open_for) =
        if torture() { (500_000, Duration::from_secs(600)) } else { (50_000, Duration::ZERO) };
    let rig = Rig::new().await;
    rig.rate(messages / 10).await;
    let before = rig.rate(messages).await;

    let bare = bare_loop(&rig, messages).await;
    assert_ratio("relay to a null sink, beside a bare read-and-delete loop", before, bare, 0.6);

    let foreign = rig.pool.get().await.unwrap();
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE TABLE foreign_table ();
        SELECT count(*) FROM semel_outbox_bucket";
    foreign.batch_execute(begin).await.unwrap();
    let opened = Instant::now();
    loop {
        let during = rig.rate(messages).await;
        assert_ratio("with a foreign transaction", during, before, 0.9);
        if opened.elapsed() >= open_for {
            break;
        }
    }
    let dead = "SELECT pg_stat_force_next_flush(); SELECT sum(n_dead_tup) FROM pg_stat_user_tables
        WHERE relname LIKE 'semel_outbox%'";
    let dead: f64 = rig.server.sql("postgres", dead).lines().last().unwrap().parse().unwrap();
    let rows = dead / opened.elapsed().as_secs_f64();
    println!("dead rows after {:?}: {dead}, {rows:.0}/s", opened.elapsed());
    // 64 buckets, saved twice a second and renewed, whatever the rate of messages.
    assert!(rows < 64.0 * 10.0, "dead rows");
    foreign.batch_execute("ROLLBACK").await.unwrap();

    let client = rig.pool.get().await.unwrap();
    let stuck = OutgoingMessage::new("orders", "").unwrap().key("stuck").unwrap();
    postgres::send(&client, &stuck).await.unwrap();
    let during = rig.rate(messages).await;
    assert_ratio("with a stuck key among 10,000", during, before, 0.9);
}

/// Reads and deletes batches of the same size, and moves no cursor.
async fn bare_loop(rig: &Rig, messages: u64) -> f64 {
    let client = rig.pool.get().await.unwrap();
    client
        .batch_execute(&format!(
            "CREATE TABLE bare (number bigint PRIMARY KEY, id uuid, topic text, key text,
                payload bytea);
            INSERT INTO bare SELECT n, gen_random_uuid(), 'orders', 'key ' || n % 10000,
                '{{\"cents\":4900}}' FROM generate_series(1, {messages}) AS n"
        ))
        .await
        .unwrap();
    let read = client.prepare("SELECT * FROM bare ORDER BY number LIMIT 1000").await.unwrap();
    let delete = client.prepare("DELETE FROM bare WHERE number = ANY($1)").await.unwrap();
    let begun = Instant::now();
    loop {
        let rows = client.query(&read, &[]).await.unwrap();
        let numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        if numbers.is_empty() {
            return messages as f64 / begun.elapsed().as_secs_f64();
        }
        client.execute(&delete, &[&numbers]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_a_large_backlog_leaves_the_rate() {
    let (small, large) = if torture() { (500_000, 10_000_000) } else { (20_000, 200_000) };
    let rig = Rig::new().await;
    rig.rate(small / 10).await;
    let before = rig.rate(small).await;
    let with_backlog = rig.rate(large).await;
    assert_ratio("with a large backlog", with_backlog, before, 0.85);
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_a_commit_wakes_the_relay_of_its_process() {
    let seconds = if torture() { 60 } else { 2 };
    let rig = Rig::new().await;
    let sink = Arc::<CountingSink>::default();
    let relay = rig.relay(&sink);
    let (mut sent, mut ticks) = (0, interval(Duration::from_millis(10)));
    for _ in 0..seconds * 100 {
        ticks.tick().await;
        // Ten concurrent transactions each ten milliseconds: 1,000 messages a second.
        let sending: Vec<_> = (0..10)
            .map(|key| {
                let (pool, waker) = (rig.pool.clone(), relay.waker.clone());
                tokio::spawn(async move {
                    let message = OutgoingMessage::new("timed", "{}").unwrap();
                    let message = message.key(format!("key {key}")).unwrap();
                    postgres::send(&pool.get().await.unwrap(), &message).await.unwrap();
                    waker.wake();
                })
            })
            .collect();
        for sending in sending {
            sending.await.unwrap();
        }
        sent += 10;
    }
    sink.wait(sent).await;
    relay.stop().await;
    let mut ages = sink.ages.lock().unwrap().clone();
    ages.sort_unstable();
    let (p50, p99) = (ages[ages.len() / 2], ages[ages.len() * 99 / 100]);
    println!("from send to sink: p50 {p50:?}, p99 {p99:?} of {sent}");
    assert!(!torture() || p50 <= Duration::from_millis(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_send_is_cheap_beside_a_commit() {
    let rounds: u32 = if torture() { 20_000 } else { 500 };
    let rig = Rig::new().await;
    let mut client = rig.pool.get().await.unwrap();
    client.batch_execute("CREATE TABLE orders (cents bigint)").await.unwrap();
    let (mut plain, mut sending) = (Duration::ZERO, Duration::ZERO);
    // By turns, so that both have the same neighbours.
    for round in 0..rounds * 2 {
        let begun = Instant::now();
        let transaction = client.transaction().await.unwrap();
        transaction.execute("INSERT INTO orders VALUES (4900)", &[]).await.unwrap();
        if round % 2 == 1 {
            let message = OutgoingMessage::new("orders", "{}").unwrap().key("customer").unwrap();
            postgres::send(transaction.client(), &message).await.unwrap();
        }
        transaction.commit().await.unwrap();
        *(if round % 2 == 1 { &mut sending } else { &mut plain }) += begun.elapsed();
    }
    let (plain, sending) = (plain / rounds, sending / rounds);
    println!("a transaction takes {plain:?}, with a message {sending:?}");
}
