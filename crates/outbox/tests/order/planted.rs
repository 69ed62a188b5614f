//! Relays as they are often written, which the test has to find wrong.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::{Client, Config, NoTls};

use crate::relay_process::FileSink;

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Remembers the last number, and reads what is above it.
pub(crate) async fn after_last(config: &Config, sink: &FileSink) {
    let client = connect(config).await;
    let mut last = 0_i64;
    loop {
        let sql = "SELECT number, key, id::text FROM semel_outbox_message WHERE number > $1
            ORDER BY number LIMIT 1000";
        for row in client.query(sql, &[&last]).await.unwrap() {
            sink.append(row.get(1), row.get(2));
            last = row.get(0);
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Locks some messages that are not sent, skips those that another relay has locked, and delivers.
pub(crate) async fn skip_locked(config: &Config, sink: &FileSink) {
    let mut client = connect(config).await;
    loop {
        let transaction = client.transaction().await.unwrap();
        let sql = "SELECT number, key, id::text FROM semel_outbox_message AS m
            WHERE NOT EXISTS (SELECT FROM sent WHERE sent.number = m.number)
            ORDER BY number LIMIT 200 FOR UPDATE SKIP LOCKED";
        for row in transaction.query(sql, &[]).await.unwrap() {
            let number: i64 = row.get(0);
            // A delivery takes a moment.
            if number % 16 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            sink.append(row.get(1), row.get(2));
            let sent = "INSERT INTO sent VALUES ($1) ON CONFLICT DO NOTHING";
            transaction.execute(sent, &[&number]).await.unwrap();
        }
        transaction.commit().await.unwrap();
        sleep(Duration::from_millis(5)).await;
    }
}
