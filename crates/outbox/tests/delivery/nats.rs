//! NATS JetStream: the server is killed and restarted in mid-stream, and so is the relay.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::PullConsumer, stream};
use futures_util::StreamExt as _;
use semel_outbox::sinks::{KEY_HEADER, NatsSink};
use semel_testkit::servers::Nats;
use tokio::time::{sleep, timeout};

use crate::{RunningRelay, fresh_outbox, inbox::Consumer, send, wait_until_delivered};

const MESSAGES: u32 = 3000;
const KEYS: u32 = 100;

/// The stream without its own removal of repeats, so that they reach the inbox.
async fn stream(url: &str) -> stream::Stream {
    let config = stream::Config {
        name: "ORDERS".to_owned(),
        subjects: vec!["shop.>".to_owned()],
        duplicate_window: Duration::from_millis(100),
        ..stream::Config::default()
    };
    let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
    let context = jetstream::new(options.connect(url).await.unwrap());
    loop {
        match context.get_or_create_stream(config.clone()).await {
            Ok(stream) => return stream,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_of_server_and_relay_lose_nothing_and_keep_the_order_of_each_key() {
    let (pool, mut server) = (fresh_outbox().await, Nats::start());
    stream(&server.url()).await;
    let sink = || async { NatsSink::connect(&server.url(), "shop.").await.unwrap() };
    let mut relay = RunningRelay::start(&pool, sink().await);
    let url = server.url();
    let sending = tokio::spawn({
        let pool = pool.clone();
        async move {
            for start in (0..MESSAGES).step_by(100) {
                send(&pool, start..start + 100, KEYS).await;
                sleep(Duration::from_millis(50)).await;
            }
        }
    });
    for _ in 0..3 {
        sleep(Duration::from_millis(300)).await;
        server.kill();
        sleep(Duration::from_millis(200)).await;
        server.start_again();
        sleep(Duration::from_millis(300)).await;
        relay.abort().await;
        relay = RunningRelay::start(&pool, NatsSink::connect(&url, "shop.").await.unwrap());
    }
    sending.await.unwrap();
    wait_until_delivered(&pool).await;
    relay.stop().await;

    let stream = stream(&server.url()).await;
    let stored = stream.cached_info().state.messages;
    let consumer: PullConsumer =
        stream.create_consumer(jetstream::consumer::pull::Config::default()).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut inbox = Consumer::new();
    for _ in 0..stored {
        let message = timeout(Duration::from_secs(10), messages.next()).await.unwrap();
        let message = message.unwrap().unwrap();
        let headers = message.headers.clone().unwrap();
        let number = String::from_utf8(message.payload.to_vec()).unwrap();
        assert_eq!(message.subject.as_str(), "shop.orders");
        let (id, key) = (headers.get("Nats-Msg-Id").unwrap(), headers.get(KEY_HEADER).unwrap());
        inbox.handle(id.as_str(), key.as_str(), number.parse().unwrap());
        message.ack().await.unwrap();
    }
    inbox.assert_effects(MESSAGES, KEYS);
    assert_eq!(u64::from(MESSAGES + inbox.repeats), stored);
    assert!(inbox.repeats > 0, "the kills repeat no message, so the inbox is not tested");
}
