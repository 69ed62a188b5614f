//! The service: 64 writers whose transactions wait at random, so that they commit out of the order
//! in which they drew their numbers.

use std::time::Duration;

use semel_outbox::{OutgoingMessage, postgres::send_all};
use tokio::{task::JoinSet, time::sleep};
use tokio_postgres::{Config, NoTls};

use crate::harness::child_role;

const WRITERS: u64 = 64;

/// Keys, so many that writers meet often and do not always.
const KEYS: u64 = 500;

/// A small generator of random numbers.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    async fn wait(&mut self) {
        // Some are much longer than the others.
        let bound = if self.below(40) == 0 { 400 } else { 20 };
        sleep(Duration::from_millis(self.below(bound))).await;
    }
}

#[test]
fn a_service_process_does_nothing_by_itself() {
    let Some((_, url, _)) = child_role() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let seed = semel_testkit::seed() ^ u64::from(std::process::id());
            writers.spawn(write(url.clone(), Random(seed.wrapping_add(writer) | 1)));
        }
        writers.join_all().await;
    });
}

/// Writes until the process is killed; reconnects when the database was.
async fn write(url: String, mut random: Random) {
    let mut config: Config = url.parse().unwrap();
    config.application_name("outbox service");
    loop {
        if let Ok((mut client, connection)) = config.connect(NoTls).await {
            tokio::spawn(connection);
            while write_once(&mut client, &mut random).await.is_ok() {}
        }
        sleep(Duration::from_millis(50)).await;
    }
}

async fn write_once(
    client: &mut tokio_postgres::Client,
    random: &mut Random,
) -> Result<(), tokio_postgres::Error> {
    let transaction = client.transaction().await?;
    if random.below(2) == 0 {
        // An early transaction id with late numbers.
        transaction.execute("SELECT pg_current_xact_id()", &[]).await?;
        random.wait().await;
    }
    let mut messages = Vec::new();
    for _ in 0..=random.below(2) {
        let key = format!("key-{}", random.below(KEYS));
        for _ in 0..=random.below(20) {
            let message = OutgoingMessage::new("orders", "{}").unwrap();
            messages.push(message.key(&key).unwrap());
        }
    }
    send_all(transaction.client(), &messages).await?;
    random.wait().await;
    if random.below(20) == 0 { transaction.rollback().await } else { transaction.commit().await }
}
