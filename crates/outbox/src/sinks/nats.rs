//! Delivers messages to NATS JetStream.

use std::{fmt, time::Duration};

use async_nats::{ConnectOptions, HeaderMap, jetstream};
use async_trait::async_trait;
use tokio::time::timeout;

use super::InvalidSink;
use crate::{Delivery, OutboxMessage, Sink};

/// How long a publication and its acknowledgement may take.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Header with the key of a message.
pub const KEY_HEADER: &str = "Semel-Key";

/// Publishes each message to a JetStream subject and waits for its acknowledgement.
///
/// The subject is a prefix and the topic. `Nats-Msg-Id` is the message id: the stream removes
/// repeats within its duplicate window, and the consumer's inbox those after it. The header
/// `Semel-Key` has the key.
pub struct NatsSink {
    context: jetstream::Context,
    prefix: String,
}

impl NatsSink {
    /// Connects to a server, such as `nats://localhost:4222`. The connection is established in the
    /// background, and again whenever it is lost. `prefix` comes before each topic.
    ///
    /// # Errors
    ///
    /// If the address cannot be read.
    pub async fn connect(url: &str, prefix: &str) -> Result<Self, InvalidSink> {
        let options = ConnectOptions::new()
            .name("semel-outbox")
            .retry_on_initial_connect()
            .request_timeout(Some(ACK_TIMEOUT))
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis(100)
                    .saturating_mul(u32::try_from(attempts).unwrap_or(20).min(20))
            });
        let client = options.connect(url).await;
        let client = client.map_err(|error| InvalidSink::Client(error.to_string()))?;
        Ok(Self { context: jetstream::new(client), prefix: prefix.to_owned() })
    }

    async fn publish(&self, message: &OutboxMessage) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", message.id.to_string());
        if let Some(key) = &message.key
            && !key.contains(['\r', '\n'])
        {
            headers.insert(KEY_HEADER, key.as_str());
        }
        let subject = format!("{}{}", self.prefix, message.topic);
        let sent =
            self.context.publish_with_headers(subject, headers, message.payload.clone().into());
        let ack = sent.await.map_err(|error| error.to_string())?;
        ack.await.map(drop).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn deliver(&self, message: &OutboxMessage) -> Delivery {
        let is_subject = !message.topic.starts_with('.')
            && !message.topic.ends_with('.')
            && !message.topic.contains("..")
            && !message
                .topic
                .contains(|c: char| c.is_whitespace() || c.is_control() || "*>".contains(c));
        if !is_subject {
            let reason = format!("`{}` is not a NATS subject", message.topic.escape_debug());
            return Delivery::Refused { reason };
        }
        match timeout(ACK_TIMEOUT, self.publish(message)).await {
            Ok(Ok(())) => Delivery::Delivered,
            // A lost acknowledgement and an absent stream look the same: no reply.
            Ok(Err(reason)) => Delivery::Unavailable { reason, after: None },
            Err(_) => {
                let reason = format!("no acknowledgement within {ACK_TIMEOUT:?}");
                Delivery::Unavailable { reason, after: None }
            }
        }
    }

    fn concurrency(&self) -> usize {
        256
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
