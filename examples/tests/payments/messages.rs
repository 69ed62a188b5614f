//! Messages about payments, while the service is killed.

use std::{collections::BTreeMap, path::Path, time::Duration};

use rusqlite::Connection;
use tempfile::TempDir;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep},
};

use crate::{TestDatabase, assert_paid_once, kills::kill_repeatedly, support::Service};

/// How long the last messages may take after the last restart.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of messages for each key, repeats removed by the inbox.
fn mail(mailbox: &Path) -> BTreeMap<String, u32> {
    let connection = Connection::open(mailbox).unwrap();
    let mut query = connection.prepare("SELECT key, count(*) FROM mail GROUP BY key").unwrap();
    query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

async fn kills_deliver_one_message_for_each_payment(database: TestDatabase) {
    let folder = TempDir::new().unwrap();
    let mailbox = folder.path().join("mailbox.db");
    let path = mailbox.to_str().unwrap();
    let command = || database.payments(&["outbox", path]);
    let report = kill_repeatedly(command).await;
    let ledger = database.ledger().await;
    assert_paid_once(&ledger, &report);
    let mut restart = command();
    let service = spawn_blocking(move || Service::start(&mut restart)).await.unwrap();
    let begun = Instant::now();
    while mail(&mailbox).len() < ledger.len() && begun.elapsed() < DELIVERY_TIMEOUT {
        sleep(Duration::from_millis(100)).await;
    }
    drop(service);
    assert_eq!(mail(&mailbox), ledger, "each payment has one message");
}

/// The same where the service delivers after its commit. It proves that the other tests can fail:
/// some payment must be without its message.
async fn kills_lose_a_message(database: impl Fn() -> TestDatabase) {
    for _ in 0..5 {
        let (database, folder) = (database(), TempDir::new().unwrap());
        let mailbox = folder.path().join("mailbox.db");
        let path = mailbox.to_str().unwrap();
        kill_repeatedly(|| database.payments(&["publish", path])).await;
        let (ledger, mail) = (database.ledger().await, mail(&mailbox));
        let lost = ledger.iter().filter(|(key, paid)| mail.get(*key) != Some(paid)).count();
        println!("{lost} of {} keys have another number of messages than payments", ledger.len());
        if lost > 0 {
            return;
        }
    }
    panic!("no kill hit between a payment and its message");
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_delivers_one_message_for_each_payment_on_postgresql() {
    kills_deliver_one_message_for_each_payment(TestDatabase::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn torture_by_kills_delivers_one_message_for_each_payment_on_sqlite() {
    kills_deliver_one_message_for_each_payment(TestDatabase::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_kills_lose_a_message_where_the_service_writes_and_then_publishes() {
    kills_lose_a_message(TestDatabase::postgres).await;
}
