//! Webhooks from an outbox to a service that is killed: each message has one effect, because its id
//! is the idempotency key.

use std::{process::Command, time::Duration};

use deadpool_postgres::{Manager, Pool};
use semel_outbox::{
    OutgoingMessage, Relay,
    postgres::{self, PgOutbox},
    sinks::HttpSink,
};
use tokio::{
    sync::oneshot,
    task::spawn_blocking,
    time::{sleep, timeout},
};
use tokio_postgres::{Config, NoTls};

use crate::{TestDatabase, support::Service};

const MESSAGES: usize = 1000;
const KILLS: u64 = 12;

/// How long the last messages may take after the last restart.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread")]
async fn each_webhook_to_a_killed_service_has_one_effect() {
    let (sender, receiver) = (TestDatabase::postgres(), TestDatabase::sqlite());
    let config: Config = sender.url().parse().unwrap();
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(2).build().unwrap();
    let client = pool.get().await.unwrap();
    postgres::create_tables(&client).await.unwrap();
    let message = |number: usize| {
        let message = OutgoingMessage::new("payments", r#"{"cents":100}"#).unwrap();
        message.key(format!("customer-{}", number % 100)).unwrap()
    };
    let messages: Vec<_> = (0..MESSAGES).map(message).collect();
    postgres::send_all(&client, &messages).await.unwrap();

    let mut service = Service::start(&mut receiver.payments(&[]));
    let address = service.address;
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_payments"));
        command.arg(receiver.url()).arg(address.to_string());
        spawn_blocking(move || Service::start(&mut command))
    };
    let sink = HttpSink::new(&format!("http://{address}/{{topic}}")).unwrap();
    let sink = sink.header("x-merchant-id", "ada").unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let relay = Relay::new(PgOutbox::new(pool.clone()), sink);
    let relaying = tokio::spawn(relay.run(async move { drop(stopped.await) }));
    for kill in 0..KILLS {
        sleep(Duration::from_millis(30 + kill * 37 % 100)).await;
        drop(service);
        service = start().await.unwrap();
    }
    let delivered = async {
        while postgres::backlog(&client, 1000).await.unwrap().waiting > 0 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(DELIVERY_TIMEOUT, delivered).await.unwrap();
    drop(stop);
    relaying.await.unwrap();
    drop(service);
    let ledger = receiver.ledger().await;
    assert_eq!(ledger.len(), MESSAGES);
    for message in &messages {
        assert_eq!(ledger.get(&message.id().to_string()), Some(&1));
    }
}
