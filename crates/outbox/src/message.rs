//! Messages: what a transaction sends, and what a relay delivers.

use std::time::Duration;

use uuid::Uuid;

/// Maximum length of a topic and of a key.
pub const NAME_BYTES_MAX: usize = 255;

/// Maximum length of a payload.
pub const PAYLOAD_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of messages with a key that one transaction on PostgreSQL should send. Each key
/// takes an entry of the server's lock table until the commit.
pub const KEYS_PER_TRANSACTION_MAX: usize = 500;

/// A message to be sent with the current transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingMessage {
    id: Uuid,
    topic: String,
    key: Option<String>,
    payload: Vec<u8>,
}

impl OutgoingMessage {
    /// A message without a key: it has no order and takes no lock.
    ///
    /// # Errors
    ///
    /// If the topic or the payload is out of bounds.
    pub fn new(
        topic: impl Into<String>,
        payload: impl Into<Vec<u8>>,
    ) -> Result<Self, InvalidMessage> {
        let (topic, payload) = (topic.into(), payload.into());
        if topic.is_empty() || topic.len() > NAME_BYTES_MAX {
            return Err(InvalidMessage::Topic { bytes: topic.len() });
        }
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(InvalidMessage::Payload { bytes: payload.len() });
        }
        Ok(Self { id: Uuid::new_v4(), topic, key: None, payload })
    }

    /// Gives the message a key. Messages of one key are delivered in the order of their commits.
    ///
    /// # Errors
    ///
    /// If the key is empty or too long.
    pub fn key(mut self, key: impl Into<String>) -> Result<Self, InvalidMessage> {
        let key = key.into();
        if key.is_empty() || key.len() > NAME_BYTES_MAX {
            return Err(InvalidMessage::Key { bytes: key.len() });
        }
        self.key = Some(key);
        Ok(self)
    }

    /// The id, by which a consumer recognises a repeated delivery.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// Topic, key and payload, in the order of the columns.
    #[must_use]
    pub fn parts(&self) -> (&str, Option<&str>, &[u8]) {
        (&self.topic, self.key.as_deref(), &self.payload)
    }
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// The topic is empty or too long.
    #[error("the topic has {bytes} bytes; use 1 to {NAME_BYTES_MAX}")]
    Topic {
        /// Its length.
        bytes: usize,
    },
    /// The key is empty or too long.
    #[error("the key has {bytes} bytes; use 1 to {NAME_BYTES_MAX}")]
    Key {
        /// Its length.
        bytes: usize,
    },
    /// The payload is too long.
    #[error(
        "the payload has {bytes} bytes; use at most {PAYLOAD_BYTES_MAX}, store what is larger \
         elsewhere and send its address"
    )]
    Payload {
        /// Its length.
        bytes: usize,
    },
}

/// A committed message, as a relay delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Rises with the order of delivery within a key.
    pub number: i64,
    /// The bucket that the key belongs to.
    pub bucket: i16,
    /// The same in every delivery of this message.
    pub id: Uuid,
    /// Where it is sent.
    pub topic: String,
    /// Messages of one key are ordered; one without a key is not.
    pub key: Option<String>,
    /// The bytes that were sent.
    pub payload: Vec<u8>,
    /// Time between `send` and the moment when the relay read the message.
    pub age: Duration,
}

impl OutboxMessage {
    /// The lane: all messages of one key, or this message alone.
    #[must_use]
    pub fn lane(&self) -> String {
        match &self.key {
            Some(key) => format!("k{key}"),
            None => format!("n{}", self.number),
        }
    }
}
