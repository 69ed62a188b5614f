//! The outbox in a SQLite file.
//!
//! A file has one writer at a time, so the order of numbers is the order of commits for all keys,
//! and the cursor is a number. One relay at a time delivers; others wait for its lease.

mod operator;
mod relay_store;

use rusqlite::Connection;
use uuid::Uuid;

pub use operator::{backlog, drop_messages, list, retry};
pub use relay_store::SqliteOutbox;

use crate::{OutboxError, OutgoingMessage};

/// The script that creates the tables, for a migration of your own. It may be run again.
pub const SCHEMA: &str = include_str!("sql/sqlite/schema.sql");

/// The statement that sends a message, for other drivers: id, topic, key and payload.
pub const SEND: &str =
    "INSERT INTO semel_outbox_message (id, topic, key, payload) VALUES (?1, ?2, ?3, ?4)";

/// Creates the [tables](SCHEMA).
///
/// # Errors
///
/// If SQLite refuses.
pub fn create_tables(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)
}

/// Sends a message with the current transaction of this connection.
///
/// # Errors
///
/// If SQLite refuses.
pub fn send(connection: &Connection, message: &OutgoingMessage) -> rusqlite::Result<Uuid> {
    let (topic, key, payload) = message.parts();
    let mut statement = connection.prepare_cached(SEND)?;
    statement.execute((message.id().to_string(), topic, key, payload))?;
    Ok(message.id())
}

/// An error of the driver, as one of the outbox.
fn sqlite_error(error: rusqlite::Error) -> OutboxError {
    OutboxError::because("the database reports an error", error)
}

/// A column with a count or with milliseconds.
fn count(row: &rusqlite::Row<'_>, column: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, Option<i64>>(column)?.unwrap_or(0)).unwrap_or(0))
}

/// A column with an id, which is text.
fn id(row: &rusqlite::Row<'_>) -> rusqlite::Result<Uuid> {
    let text: String = row.get("id")?;
    Uuid::parse_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error))
    })
}
