//! Payments that are killed with `kill -9` again and again: the ledger has each key once, and every
//! answer that was given is given again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "how much was killed is not judged")]

mod behaves;
mod client;
mod kills;
#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeMap, process::Command};

use kills::{Seen, kill_again_and_again};
use rusqlite::Connection;
use semel_testkit::servers;
use tempfile::TempDir;
use tokio_postgres::{Config, NoTls};

/// A database of a test's own.
enum Place {
    Postgres(String),
    Sqlite(TempDir),
}

impl Place {
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

    /// How often each key is in the ledger.
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

/// What the kills left of a database.
fn judge(ledger: &BTreeMap<String, u32>, seen: &Seen) {
    let twice: Vec<_> = ledger.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "paid more than once: {twice:?}");
    for key in seen.paid.keys() {
        assert!(ledger.contains_key(key), "{key} was acknowledged and is not in the ledger");
    }
    println!("{} kills, {} keys paid, each once", seen.kills, seen.paid.len());
}

async fn pays_once(place: Place) {
    let seen = kill_again_and_again(|| place.payments(&[])).await;
    judge(&place.ledger().await, &seen);
    seen.is_replayed(|| place.payments(&[])).await;
}

/// The same with one transaction switched off: if it showed no damage, the other tests would prove
/// nothing. A dozen kills may all miss the moment between a payment and its record; sixty do not.
async fn pays_twice(place: impl Fn() -> Place) {
    for _ in 0..5 {
        let place = place();
        let seen = kill_again_and_again(|| place.payments(&["separate"])).await;
        let twice = place.ledger().await.values().filter(|count| **count > 1).count();
        println!("{} kills, {twice} of {} keys paid more than once", seen.kills, seen.paid.len());
        if twice > 0 {
            return;
        }
    }
    panic!("no kill hit between a payment and its record");
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_pays_each_key_once_on_postgresql() {
    pays_once(Place::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_pays_each_key_once_on_sqlite() {
    pays_once(Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_pay_twice_on_postgresql_where_the_record_is_separate() {
    pays_twice(Place::postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_pay_twice_on_sqlite_where_the_record_is_separate() {
    pays_twice(Place::sqlite).await;
}
