//! A transactional outbox: a message is sent if and only if its transaction committed, and messages
//! of one key are delivered in the order of their commits.
//!
//! `send` adds a row to a table of the user's own database, in the user's transaction. A [`Relay`]
//! reads committed rows and delivers them to a [`Sink`]. Any number of relays share the work.
//! Delivery is *at least once*: after a crash some messages are delivered again, with the same id,
//! and the receiver removes the repeats.
//!
//! On PostgreSQL, [`postgres::send`] or `SELECT semel_send(topic, key, payload)` sends a message,
//! and the relay works on a [`postgres::PgOutbox`]. On SQLite these are [`sqlite::send`] and
//! [`sqlite::SqliteOutbox`].

mod batch;
mod cursor;
mod lanes;
mod message;
#[cfg(feature = "postgres")]
pub mod postgres;
mod relay;
mod sink;
pub mod sinks;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod store;

use std::time::Duration;

pub use cursor::{BucketCursor, Progress, Window, progress};
pub use message::{
    InvalidMessage, KEYS_PER_TRANSACTION_MAX, NAME_BYTES_MAX, OutboxMessage, OutgoingMessage,
    PAYLOAD_BYTES_MAX,
};
pub use relay::{Relay, RelayMetrics, RelayOptions, RelayWaker};
pub use sink::{Delivery, MemorySink, NullSink, Sink};
pub use store::{
    AsideAttempt, AsideEntry, AsideLane, AsideMessage, Backlog, OperatorScope, OutboxError,
    RelayStore,
};

/// How long a relay may stay silent before others take its buckets.
pub const LEASE: Duration = Duration::from_secs(10);
