//! Where messages are delivered.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;

use crate::OutboxMessage;

/// Delivers one message at a time.
///
/// The relay calls [`deliver`](Self::deliver) for one message of a key at a time, and for several
/// keys concurrently. A sink must not return [`Delivered`](Delivery::Delivered) before the receiver
/// has the message durably: the relay does not send it again after that. A sink may be called again
/// with a message that it has delivered, after a crash of the relay for example; the receiver
/// recognises it by its id.
///
/// A sink is dropped in the middle of a call when a relay is aborted. The message is then delivered
/// again.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Tries to deliver a message once.
    async fn deliver(&self, message: &OutboxMessage) -> Delivery;

    /// Maximum number of concurrent deliveries of one relay.
    fn concurrency(&self) -> usize {
        32
    }
}

/// The result of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The receiver has the message.
    Delivered,
    /// The receiver does not want this message, now or later: an operator decides.
    Refused {
        /// For the operator.
        reason: String,
    },
    /// The attempt failed, and it may be because of this message.
    Failed {
        /// For the operator.
        reason: String,
        /// The earliest time of the next attempt, if the receiver named one.
        after: Option<Duration>,
    },
    /// The receiver cannot be reached, whatever the message.
    Unavailable {
        /// For the operator.
        reason: String,
        /// The earliest time of the next attempt, if the receiver named one.
        after: Option<Duration>,
    },
}

/// Drops every message: for benchmarks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

#[async_trait]
impl Sink for NullSink {
    async fn deliver(&self, _: &OutboxMessage) -> Delivery {
        Delivery::Delivered
    }
}

/// Keeps every message in memory: for tests.
#[derive(Debug, Default)]
pub struct MemorySink(Mutex<Vec<OutboxMessage>>);

impl MemorySink {
    /// The messages in the order in which they were delivered, repeats included.
    #[must_use]
    pub fn delivered(&self) -> Vec<OutboxMessage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Sink for MemorySink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message.clone());
        Delivery::Delivered
    }
}

#[async_trait]
impl<S: Sink + ?Sized> Sink for std::sync::Arc<S> {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        (**self).deliver(message).await
    }

    fn concurrency(&self) -> usize {
        (**self).concurrency()
    }
}
