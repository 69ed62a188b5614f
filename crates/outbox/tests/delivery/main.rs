//! Delivery to real receivers that are killed in mid-stream: NATS JetStream, and HTTP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod http;
mod inbox;
mod nats;

use std::time::Duration;

use deadpool_postgres::{Manager, Pool};
use semel_outbox::{
    OutgoingMessage, Relay, Sink,
    postgres::{self, PgOutbox},
};
use semel_testkit::servers;
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_postgres::{Config, NoTls};

/// A database with an outbox.
pub(crate) async fn fresh_outbox() -> Pool {
    let server = servers::postgres();
    let config: Config = server.url(&server.fresh_database()).parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(4).build().unwrap();
    postgres::create_tables(&pool.get().await.unwrap()).await.unwrap();
    pool
}

/// Sends numbered messages, a transaction for every ten, on so many keys.
pub(crate) async fn send(pool: &Pool, numbers: std::ops::Range<u32>, keys: u32) {
    let numbers: Vec<u32> = numbers.collect();
    for some in numbers.chunks(10) {
        let messages: Vec<_> = some.iter().map(|number| message(*number, keys)).collect();
        let mut client = pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        postgres::send_all(transaction.client(), &messages).await.unwrap();
        transaction.commit().await.unwrap();
    }
}

fn message(number: u32, keys: u32) -> OutgoingMessage {
    let message = OutgoingMessage::new("orders", number.to_string()).unwrap();
    message.key(format!("key-{}", number % keys)).unwrap()
}

/// A relay as a task.
pub(crate) struct RunningRelay {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl RunningRelay {
    pub(crate) fn start(pool: &Pool, sink: impl Sink) -> Self {
        let outbox = PgOutbox::new(pool.clone()).with_lease(Duration::from_secs(1));
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        Self { stop, task: tokio::spawn(Relay::new(outbox, sink).run(shutdown)) }
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        self.task.await.unwrap();
    }

    /// Ends it in the middle of a batch, as a kill does.
    pub(crate) async fn abort(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Waits until nothing is left to deliver.
pub(crate) async fn wait_until_delivered(pool: &Pool) {
    let waiting = async {
        loop {
            let backlog = postgres::backlog(&pool.get().await.unwrap(), 1000).await.unwrap();
            if backlog.waiting == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(90), waiting).await.unwrap();
}
