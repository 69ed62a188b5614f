//! A sink that fails on demand.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use semel_outbox::{Delivery, OutboxMessage, Sink};
use tokio::{sync::Notify, time::timeout};

/// How long a test waits for a delivery.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Inner {
    delivered: Mutex<Vec<OutboxMessage>>,
    /// The answer to each key that does not get `Delivered`; the empty key is every message.
    failing: Mutex<BTreeMap<String, Delivery>>,
    attempts: Mutex<u32>,
    changed: Notify,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TestSink(Arc<Inner>);

#[async_trait]
impl Sink for TestSink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        *self.0.attempts.lock().unwrap() += 1;
        let failing = self.0.failing.lock().unwrap().clone();
        let key = message.key.clone().unwrap_or_default();
        let failure = failing.get(&key).or_else(|| failing.get("")).cloned();
        if failure.is_none() {
            self.0.delivered.lock().unwrap().push(message.clone());
        }
        self.0.changed.notify_waiters();
        failure.unwrap_or(Delivery::Delivered)
    }
}

pub(crate) fn failed() -> Delivery {
    Delivery::Failed { reason: "as the test wants it".to_owned(), after: None }
}

impl TestSink {
    pub(crate) fn fail(&self, key: &str, delivery: Delivery) {
        self.0.failing.lock().unwrap().insert(key.to_owned(), delivery);
    }

    pub(crate) fn succeed(&self, key: &str) {
        self.0.failing.lock().unwrap().remove(key);
    }

    /// The payloads in the order of their deliveries.
    pub(crate) fn payloads(&self) -> Vec<String> {
        let delivered = self.0.delivered.lock().unwrap();
        delivered.iter().map(|it| String::from_utf8(it.payload.clone()).unwrap()).collect()
    }

    pub(crate) fn attempts(&self) -> u32 {
        *self.0.attempts.lock().unwrap()
    }

    /// Waits until the deliveries or attempts fulfil a condition.
    pub(crate) async fn wait(&self, condition: impl Fn(&Self) -> bool) {
        let waiting = async {
            loop {
                let changed = self.0.changed.notified();
                let mut changed = std::pin::pin!(changed);
                changed.as_mut().enable();
                if condition(self) {
                    return;
                }
                changed.await;
            }
        };
        let waited = timeout(DELIVERY_TIMEOUT, waiting).await;
        waited.unwrap_or_else(|_| panic!("delivered are {:?}", self.payloads()));
    }

    pub(crate) async fn wait_for(&self, payloads: &[&str]) {
        self.wait(|sink| sink.payloads().len() >= payloads.len()).await;
        assert_eq!(self.payloads(), payloads);
    }
}
