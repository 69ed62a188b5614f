//! Payments that are killed with `kill -9` again and again: the ledger has each key once, and every
//! answer that was given is given again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod behaves;
mod client;
mod kills;
#[path = "../support/mod.rs"]
mod support;

use std::{collections::BTreeMap, process::Command, sync::Arc};

use kills::{Seen, kill_again_and_again};
use semel_testkit::servers;
use tokio_postgres::{Client, Config, NoTls};

async fn connect(url: &str) -> Client {
    let config: Config = url.parse().unwrap();
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// How often each key is in the ledger.
async fn ledger(url: &str) -> BTreeMap<String, i64> {
    let client = connect(url).await;
    let rows = client.query("SELECT key, count(*) FROM ledger GROUP BY key", &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn payments(database: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
    command.arg(database).arg("127.0.0.1:0").args(more);
    command
}

/// What the kills left of a database.
fn judge(ledger: &BTreeMap<String, i64>, seen: &Seen) {
    let twice: Vec<_> = ledger.iter().filter(|(_, count)| **count != 1).collect();
    assert!(twice.is_empty(), "paid more than once: {twice:?}");
    for key in seen.paid.keys() {
        assert!(ledger.contains_key(key), "{key} was acknowledged and is not in the ledger");
    }
    println!("{} kills, {} keys paid, each once", seen.kills, seen.paid.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_pays_each_key_once_on_postgresql() {
    let server = servers::postgres();
    let url = Arc::new(server.url(&server.fresh_database()));
    let seen = kill_again_and_again(|| payments(&url, &[])).await;
    judge(&ledger(&url).await, &seen);
    seen.is_replayed(|| payments(&url, &[])).await;
}

/// The same with one transaction switched off: if it showed no damage, the test above would prove
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_pay_twice_where_payment_and_record_are_separate() {
    let server = servers::postgres();
    let url = server.url(&server.fresh_database());
    let seen = kill_again_and_again(|| payments(&url, &["separate"])).await;
    let twice = ledger(&url).await.values().filter(|count| **count > 1).count();
    println!("{} kills, {twice} of {} keys paid more than once", seen.kills, seen.paid.len());
    assert!(twice > 0, "no kill hit between a payment and its record");
}
