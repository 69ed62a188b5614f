//! Payments while the service is killed repeatedly with `kill -9`: the ledger has each key once,
//! and every acknowledged answer is replayed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "the number of kills is information, not an assertion")]

mod behaves;
mod client;
mod kills;
mod messages;
#[path = "../support/mod.rs"]
mod support;
mod webhooks;

use std::{collections::BTreeMap, process::Command};

use kills::{KillReport, kill_repeatedly};
use rusqlite::Connection;
use semel_testkit::servers;
use tempfile::TempDir;
use tokio_postgres::{Config, NoTls};

/// The database of one test.
enum TestDatabase {
    Postgres(String),
    Sqlite(TempDir),
}

impl TestDatabase {
    fn postgres() -> Self {
        let server = servers::postgres();
        Self::Postgres(server.url(&server.fresh_database()))
    }

    fn sqlite() -> Self {
        Self::Sqlite(TempDir::new().unwrap())
    }

    fn url(&self) -> String {
        match self {
            Self::Postgres(url) => url.clone(),
            Self::Sqlite(folder) => format!("sqlite:{}", folder.path().join("shop.db").display()),
        }
    }

    /// The values of a query with one column of text.
    async fn texts(&self, query: &str) -> Vec<String> {
        match self {
            Self::Postgres(url) => {
                let config: Config = url.parse().unwrap();
                let (client, connection) = config.connect(NoTls).await.unwrap();
                tokio::spawn(connection);
                let rows = client.query(query, &[]).await.unwrap();
                rows.iter().map(|row| row.get(0)).collect()
            }
            Self::Sqlite(folder) => {
                let shop = Connection::open(folder.path().join("shop.db")).unwrap();
                let mut query = shop.prepare(query).unwrap();
                query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// Number of ledger entries for each key.
    async fn ledger(&self) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for key in self.texts("SELECT key FROM ledger").await {
            *counts.entry(key).or_default() += 1;
        }
        counts
    }

    fn payments(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.arg(self.url()).arg("127.0.0.1:0").args(more);
        command
    }
}

/// Asserts that each key was paid once and that no acknowledged payment is missing.
fn assert_paid_once(ledger: &BTreeMap<String, u32>, report: &KillReport) {
    let twice: Vec<_> = ledger.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "paid more than once: {twice:?}");
    for key in report.paid.keys() {
        assert!(ledger.contains_key(key), "{key} was acknowledged and is not in the ledger");
    }
    println!("{} kills, {} keys paid, each once", report.kills, report.paid.len());
}

async fn kills_pay_each_key_once(database: TestDatabase) {
    let report = kill_repeatedly(|| database.payments(&[])).await;
    assert_paid_once(&database.ledger().await, &report);
    report.assert_replayed(|| database.payments(&[])).await;
}

/// The same with payment and record in separate transactions. It proves that the other tests can
/// fail: some key must be paid twice. A dozen kills may all miss the window between the payment and
/// its record; sixty do not.
async fn kills_pay_a_key_twice(database: impl Fn() -> TestDatabase) {
    for _ in 0..5 {
        let database = database();
        let report = kill_repeatedly(|| database.payments(&["separate"])).await;
        let twice = database.ledger().await.values().filter(|count| **count > 1).count();
        println!(
            "{} kills, {twice} of {} keys paid more than once",
            report.kills,
            report.paid.len()
        );
        if twice > 0 {
            return;
        }
    }
    panic!("no kill hit between a payment and its record");
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_pays_each_key_once_on_postgresql() {
    kills_pay_each_key_once(TestDatabase::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_pays_each_key_once_on_sqlite() {
    kills_pay_each_key_once(TestDatabase::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_pay_twice_on_postgresql_where_the_record_is_separate() {
    kills_pay_a_key_twice(TestDatabase::postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_pay_twice_on_sqlite_where_the_record_is_separate() {
    kills_pay_a_key_twice(TestDatabase::sqlite).await;
}
