//! What a relay needs of a database.

use std::{error::Error, fmt, time::Duration};

use async_trait::async_trait;
use uuid::Uuid;

use crate::OutboxMessage;

/// The outbox in a database, as one relay works with it.
///
/// A relay owns buckets by leases with fences. In memory it goes ahead of what is saved, so a crash
/// repeats at most what was delivered since the last [`save`](Self::save).
#[async_trait]
pub trait RelayStore: Send + 'static {
    /// How long the relay may stay silent before others take its buckets.
    fn lease(&self) -> Duration;

    /// Renews the leases, takes the relay's share of the buckets, gives back what is more, and
    /// loads the cursors of new ones. Nothing fetched may be unsaved. Returns the number of owned
    /// buckets.
    async fn balance(&mut self) -> Result<usize, OutboxError>;

    /// Renews the leases.
    async fn renew(&mut self) -> Result<(), OutboxError>;

    /// The next messages of the owned buckets, in the order of their numbers within each bucket.
    async fn fetch(&mut self) -> Result<Vec<OutboxMessage>, OutboxError>;

    /// Moves the cursors past what was fetched last, in memory.
    fn advance(&mut self);

    /// Makes the cursors durable, and in the same transaction moves these messages aside. Buckets
    /// that another relay has taken are dropped, with their messages.
    async fn save(&mut self, aside: Vec<AsideMessage>) -> Result<(), OutboxError>;

    /// The lanes of the owned buckets that are aside.
    async fn lanes(&mut self) -> Result<Vec<AsideLane>, OutboxError>;

    /// The first message of a lane, with its lane.
    async fn head(
        &mut self,
        bucket: i16,
        lane: &str,
    ) -> Result<Option<(OutboxMessage, AsideLane)>, OutboxError>;

    /// Deletes a delivered message from its lane.
    async fn settle(&mut self, number: i64) -> Result<(), OutboxError>;

    /// Records a failed attempt on the first message of a lane.
    async fn defer(&mut self, failed: &AsideAttempt) -> Result<(), OutboxError>;

    /// Deletes delivered messages past their retention.
    async fn sweep(&mut self) -> Result<(), OutboxError>;

    /// Gives all leases back.
    async fn release(&mut self) -> Result<(), OutboxError>;

    /// Forgets everything in memory after an error.
    fn reset(&mut self);
}

/// A message that is moved aside.
#[derive(Clone, Debug)]
pub struct AsideMessage {
    /// The message.
    pub message: OutboxMessage,
    /// The failed attempt that moved it; `None` where it waits for an earlier one of its key.
    pub failed: Option<AsideAttempt>,
}

/// A failed attempt to deliver the first message of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideAttempt {
    /// The number of the message.
    pub number: i64,
    /// The attempts so far.
    pub attempts: u32,
    /// Time until the next one.
    pub delay: Duration,
    /// Whether only an operator can continue.
    pub parked: bool,
    /// Why it failed.
    pub reason: String,
}

/// The state of a lane that is aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideLane {
    /// Its bucket.
    pub bucket: i16,
    /// Its name.
    pub lane: String,
    /// The failed attempts to deliver its first message.
    pub attempts: u32,
    /// Time until the next attempt.
    pub due: Duration,
    /// Whether only an operator can continue.
    pub parked: bool,
    /// Its messages.
    pub messages: u64,
}

/// A message that is aside, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideEntry {
    /// Its id.
    pub id: Uuid,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// The failed attempts to deliver it.
    pub attempts: u32,
    /// Whether only an operator can continue.
    pub parked: bool,
    /// Why the last attempt failed; `None` where it waits for an earlier message of its key.
    pub reason: Option<String>,
    /// Time since it was sent.
    pub age: Duration,
}

/// Which of the messages that are aside an operator's action applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorScope {
    /// The message with this id.
    Id(Uuid),
    /// Every parked message.
    Parked,
}

/// How much waits in an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Messages that are not delivered, those aside included. It is counted up to a limit.
    pub waiting: u64,
    /// Messages that are aside.
    pub aside: u64,
    /// Parked messages, which wait for an operator.
    pub parked: u64,
    /// Time since the oldest undelivered message was sent.
    pub age: Duration,
}

/// An error of the database under an outbox.
#[derive(Debug)]
pub struct OutboxError {
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl OutboxError {
    /// An error with a message.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// An error of the driver.
    #[must_use]
    pub fn because(
        message: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self { message: message.into(), source: Some(source.into()) }
    }
}

impl fmt::Display for OutboxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut source = self.source.as_deref().map(|source| source as &dyn Error);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

impl Error for OutboxError {}
