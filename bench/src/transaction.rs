//! What it costs to record a payment by its own transaction, beside the payment alone.
//!
//! A payment is what a shop writes for one: an order, two lines of the ledger, a new balance of the
//! merchant's account, and a message that is to be sent. All subjects write the same through the
//! same kind of pool; one of them is an operation of `once` on a transactional store, with its own
//! key and an answer of 300 bytes.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use deadpool_postgres::{ClientWrapper, Manager, Pool};
use semel::{Outcome, Semel};
use semel_core::{Caller, Key, OnUnknown, Policy};
use semel_postgres::transactional::{self, PgDatabase, PgTransactionalStore};
use tokio::task::JoinSet;
use tokio_postgres::{Config, NoTls};

use crate::{
    machine,
    measure::{Latencies, as_f64, ratios, turns},
    postgres::server::PostgresServer,
    random::Random,
    report::{Report, Target},
    settings::{Settings, progress, progress_end},
};

const PART: &str = "transaction";
const CLIENTS: usize = 64;
const CONNECTIONS: usize = 16;
const ACCOUNTS: u64 = 1000;
const ANSWER_BYTES: usize = 300;

/// Many short rounds instead of a few long ones: what else the machine does then falls on all.
const ROUNDS: usize = 15;

/// How long one measurement takes, and what comes before it.
const TURN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(800));

static PADDING: LazyLock<String> = LazyLock::new(|| "-".repeat(ANSWER_BYTES));

/// What one transaction may take beside the payment alone.
const COST: Target = Target::AtMost(1.35);

const TABLES: &str = "
    CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
    INSERT INTO accounts SELECT n, 0 FROM generate_series(0, 999) AS n;
    CREATE TABLE orders (
        id         bigserial PRIMARY KEY,
        account_id bigint NOT NULL REFERENCES accounts,
        cents      bigint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE TABLE ledger (
        id       bigserial PRIMARY KEY,
        order_id bigint NOT NULL REFERENCES orders,
        account  text NOT NULL,
        cents    bigint NOT NULL
    );
    CREATE TABLE messages (
        id      bigserial PRIMARY KEY,
        topic   text NOT NULL,
        content text NOT NULL
    )";

const ORDER: &str = "INSERT INTO orders (account_id, cents) VALUES ($1, $2) RETURNING id";
const LINES: &str = "INSERT INTO ledger (order_id, account, cents) \
                     VALUES ($1, 'sales', $2), ($1, 'cards', -$2::bigint)";
const MESSAGE: &str = "INSERT INTO messages (topic, content) VALUES ('paid', $1)";
const BALANCE: &str = "UPDATE accounts SET balance = balance + $2 WHERE id = $1";

/// What is measured.
#[derive(Clone)]
enum TransactionCase {
    Alone(Pool),
    Joint(Semel, PgTransactionalStore, Arc<Policy>),
}

/// What was seen of each subject, round by round.
#[derive(Debug, Default)]
struct TransactionSamples {
    rate: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    micros: Vec<f64>,
    /// The part of it that is not the server's.
    own: Vec<f64>,
}

pub(crate) async fn run(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    if !settings.wants(PART) {
        return Ok(());
    }
    let server = PostgresServer::start();
    let pool = pool(&server.url())?;
    pool.get().await?.batch_execute(TABLES).await?;
    transactional::create_table(&pool).await?;
    let policy = Arc::new(Policy { on_unknown: OnUnknown::Rerun, ..Policy::default() });
    let store = PgDatabase::new(self::pool(&server.url())?).store();
    let subjects = [
        TransactionCase::Joint(Semel::new(store.clone()), store, policy),
        TransactionCase::Alone(pool),
    ];
    let mut seen = [(); 2].map(|()| TransactionSamples::default());
    let rounds = settings.or_quick(ROUNDS, 3);
    for round in 0..rounds {
        progress(&format!("{PART}: round {} of {rounds}", round + 1));
        for at in turns(round, subjects.len()) {
            measure(&subjects[at], settings.or_quick(TURN, settings.cell()), &mut seen[at]).await?;
        }
    }
    progress_end();
    add(report, &seen);
    report.note(format!(
        "A payment: BEGIN, an order, two lines of a ledger, a balance, a message, COMMIT; \
         prepared, on a pool of {CONNECTIONS} connections for {CLIENTS} clients. In one \
         transaction: the same as an operation of `once` under a key of its own, its answer of \
         {ANSWER_BYTES} bytes recorded by the same commit. CPU is that of this program and of all \
         processes of the server. {}",
        server.describe(),
    ));
    Ok(())
}

fn pool(url: &str) -> anyhow::Result<Pool> {
    let manager = Manager::new(url.parse::<Config>()?, NoTls);
    Ok(Pool::builder(manager).max_size(CONNECTIONS).build()?)
}

async fn measure(
    subject: &TransactionCase,
    (warm_up, length): (Duration, Duration),
    seen: &mut TransactionSamples,
) -> anyhow::Result<()> {
    let begin = Instant::now() + warm_up;
    let end = begin + length;
    let (spent, own) = (machine::family_micros()?, machine::own_micros());
    let in_all = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let (subject, in_all) = (subject.clone(), Arc::clone(&in_all));
        tasks.spawn(async move {
            let (mut random, mut took) = (Random::new(), Latencies::default());
            loop {
                let asked = Instant::now();
                if asked >= end {
                    return anyhow::Ok(took);
                }
                subject.pay(&mut random).await?;
                in_all.fetch_add(1, Ordering::Relaxed);
                if asked >= begin {
                    took.push(asked.elapsed());
                }
            }
        });
    }
    let mut took = Latencies::default();
    while let Some(client) = tasks.join_next().await {
        took.append(client.context("a client stopped")??);
    }
    let (spent, own) = (machine::family_micros()? - spent, machine::own_micros() - own);
    seen.rate.push(as_f64(took.len()) / length.as_secs_f64());
    seen.p50.push(took.within(0.5));
    seen.p99.push(took.within(0.99));
    let payments = as_f64(in_all.load(Ordering::Relaxed));
    seen.micros.push(spent / payments);
    seen.own.push(own / payments);
    Ok(())
}

impl TransactionCase {
    async fn pay(&self, random: &mut Random) -> anyhow::Result<()> {
        let account = i64::try_from(random.number() % ACCOUNTS)?;
        match self {
            Self::Alone(pool) => {
                let client = pool.get().await?;
                client.batch_execute("BEGIN").await?;
                write(&client, account).await?;
                Ok(client.batch_execute("COMMIT").await?)
            }
            Self::Joint(semel, store, policy) => {
                let key = random.key();
                let key = Key::new(str::from_utf8(&key)?)?;
                let once = semel.once("payments", Caller::new("merchant-71")?, key);
                let (once, store) = (once.policy(Arc::clone(policy)), store.clone());
                let run = once.fingerprint(&account).run(move |lease| async move {
                    let tx = store.transaction(&lease).await?;
                    let order = write(&tx, account).await?;
                    Ok(answer(order))
                });
                let outcome = run.await?;
                ensure!(matches!(outcome, Outcome::Ran(_)), "a new key did not run: {outcome:?}");
                Ok(())
            }
        }
    }
}

async fn write(client: &ClientWrapper, account: i64) -> Result<i64, tokio_postgres::Error> {
    let (order, lines, balance, message) = (
        client.prepare_cached(ORDER).await?,
        client.prepare_cached(LINES).await?,
        client.prepare_cached(BALANCE).await?,
        client.prepare_cached(MESSAGE).await?,
    );
    let cents = 4900_i64;
    let order: i64 = client.query_one(&order, &[&account, &cents]).await?.get(0);
    client.execute(&lines, &[&order, &cents]).await?;
    client.execute(&balance, &[&account, &cents]).await?;
    let content = format!(r#"{{"order":{order},"account":{account},"cents":{cents}}}"#);
    client.execute(&message, &[&content]).await?;
    Ok(order)
}

/// An answer of [`ANSWER_BYTES`], most of which costs no time to write.
fn answer(order: i64) -> String {
    let mut answer = format!("{order:020}");
    answer.push_str(&PADDING[answer.len()..]);
    answer
}

const NAMES: [&str; 2] = ["one transaction", "the payment alone"];

fn add(report: &mut Report, seen: &[TransactionSamples; 2]) {
    for (name, seen) in NAMES.iter().zip(seen) {
        let what = |text: &str| format!("c={CLIENTS}: {name}{text}");
        report.line(PART, what(""), "payments/s", &seen.rate);
        report.line(PART, what(", p50"), "ms", &seen.p50);
        report.line(PART, what(", p99"), "ms", &seen.p99);
        report.line(PART, what(", CPU per payment"), "µs", &seen.micros);
        report.line(PART, what(", CPU per payment without the server"), "µs", &seen.own);
    }
    let [transactional, alone] = seen;
    let what = |text: &str| format!("c={CLIENTS}: one transaction / alone, {text}");
    let p50 = ratios(&transactional.p50, &alone.p50);
    let cpu = ratios(&transactional.micros, &alone.micros);
    report.judge(PART, what("p50"), "x", &p50, COST);
    report.judge(PART, what("CPU per payment"), "x", &cpu, COST);
}
