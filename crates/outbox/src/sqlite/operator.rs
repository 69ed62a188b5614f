//! What operators see and do.

use std::time::Duration;

use rusqlite::{Connection, Row};

use super::{count, id, sqlite_error};
use crate::{AsideEntry, Backlog, OperatorScope, OutboxError};

/// How many messages wait, counted up to `limit`.
///
/// # Errors
///
/// If the database cannot be asked.
pub fn backlog(connection: &Connection, limit: i64) -> Result<Backlog, OutboxError> {
    let sql = "SELECT m.waiting + a.aside AS waiting, a.aside, a.parked,
            max(0, CAST(unixepoch('subsec') * 1000 AS INTEGER)
                - min(coalesce(m.oldest, a.oldest), coalesce(a.oldest, m.oldest))) AS age
        FROM (
            SELECT count(*) AS waiting, min(sent_at) AS oldest FROM (
                SELECT sent_at FROM semel_outbox_message
                WHERE number > (SELECT position FROM semel_outbox_relay) ORDER BY number LIMIT ?1
            )
        ) AS m, (
            SELECT count(*) AS aside, coalesce(sum(parked), 0) AS parked, min(sent_at) AS oldest
            FROM semel_outbox_aside
        ) AS a";
    let backlog = |row: &Row<'_>| {
        Ok(Backlog {
            waiting: count(row, "waiting")?,
            aside: count(row, "aside")?,
            parked: count(row, "parked")?,
            age: Duration::from_millis(count(row, "age")?),
        })
    };
    connection.query_row(sql, [limit], backlog).map_err(sqlite_error)
}

/// The messages that are aside, the oldest first.
///
/// # Errors
///
/// If the database cannot be asked.
pub fn list(
    connection: &Connection,
    only_parked: bool,
    limit: i64,
) -> Result<Vec<AsideEntry>, OutboxError> {
    let sql = "SELECT id, topic, key, attempts, parked, reason,
            max(0, CAST(unixepoch('subsec') * 1000 AS INTEGER) - sent_at) AS age
        FROM semel_outbox_aside WHERE parked OR NOT ?1 ORDER BY number LIMIT ?2";
    let entry = |row: &Row<'_>| {
        Ok(AsideEntry {
            id: id(row)?,
            topic: row.get("topic")?,
            key: row.get("key")?,
            attempts: row.get("attempts")?,
            parked: row.get("parked")?,
            reason: row.get("reason")?,
            age: Duration::from_millis(count(row, "age")?),
        })
    };
    let listed = connection.prepare_cached(sql).and_then(|mut statement| {
        statement.query_map((only_parked, limit), entry)?.collect::<Result<Vec<_>, _>>()
    });
    listed.map_err(sqlite_error)
}

/// Lets parked messages, or a waiting one, be tried at once, with all their attempts. Returns how
/// many.
///
/// # Errors
///
/// If SQLite refuses.
pub fn retry(connection: &Connection, scope: &OperatorScope) -> Result<u64, OutboxError> {
    act(connection, "UPDATE semel_outbox_aside SET parked = 0, attempts = 0, due_at = 0", scope)
}

/// Deletes messages that are aside, undelivered. The next message of the key follows. Returns how
/// many.
///
/// # Errors
///
/// If SQLite refuses.
pub fn drop_messages(connection: &Connection, scope: &OperatorScope) -> Result<u64, OutboxError> {
    act(connection, "DELETE FROM semel_outbox_aside", scope)
}

fn act(connection: &Connection, sql: &str, scope: &OperatorScope) -> Result<u64, OutboxError> {
    let done = match scope {
        OperatorScope::Id(id) => {
            connection.execute(&format!("{sql} WHERE id = ?1"), [id.to_string()])
        }
        OperatorScope::Parked => connection.execute(&format!("{sql} WHERE parked"), []),
    };
    done.map(|rows| u64::try_from(rows).unwrap_or(u64::MAX)).map_err(sqlite_error)
}
