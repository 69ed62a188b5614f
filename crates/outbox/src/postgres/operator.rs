//! What operators see and do.

use std::time::Duration;

use tokio_postgres::{Client, Row};

use super::database_error;
use crate::{AsideEntry, Backlog, OperatorScope, OutboxError};

/// How many messages wait. Each bucket is counted up to `limit`.
///
/// # Errors
///
/// If the database cannot be asked.
pub async fn backlog(client: &Client, limit: i64) -> Result<Backlog, OutboxError> {
    let sql = include_str!("../sql/postgres/backlog.sql");
    let row = client.query_one(sql, &[&limit]).await.map_err(database_error)?;
    let count = |name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or(0);
    Ok(Backlog {
        waiting: count("waiting"),
        aside: count("aside"),
        parked: count("parked"),
        age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
    })
}

/// The messages that are aside, the oldest first.
///
/// # Errors
///
/// If the database cannot be asked.
pub async fn list(
    client: &Client,
    only_parked: bool,
    limit: i64,
) -> Result<Vec<AsideEntry>, OutboxError> {
    let sql = "SELECT id, topic, key, attempts, parked, reason,
            extract(epoch FROM clock_timestamp() - sent_at)::double precision AS age
        FROM semel_outbox_aside WHERE parked OR NOT $1 ORDER BY number LIMIT $2";
    let rows = client.query(sql, &[&only_parked, &limit]).await.map_err(database_error)?;
    Ok(rows.iter().map(entry).collect())
}

fn entry(row: &Row) -> AsideEntry {
    AsideEntry {
        id: row.get("id"),
        topic: row.get("topic"),
        key: row.get("key"),
        attempts: u32::try_from(row.get::<_, i32>("attempts")).unwrap_or(0),
        parked: row.get("parked"),
        reason: row.get("reason"),
        age: Duration::try_from_secs_f64(row.get("age")).unwrap_or_default(),
    }
}

/// Lets parked messages, or a waiting one, be tried at once, with all their attempts. Returns how
/// many.
///
/// # Errors
///
/// If the database refuses.
pub async fn retry(client: &Client, scope: &OperatorScope) -> Result<u64, OutboxError> {
    let set = "UPDATE semel_outbox_aside
        SET parked = false, attempts = 0, due_at = clock_timestamp()";
    act(client, set, scope).await
}

/// Deletes messages that are aside, undelivered. The next message of the key follows. Returns how
/// many.
///
/// # Errors
///
/// If the database refuses.
pub async fn drop_messages(client: &Client, scope: &OperatorScope) -> Result<u64, OutboxError> {
    act(client, "DELETE FROM semel_outbox_aside", scope).await
}

async fn act(client: &Client, sql: &str, scope: &OperatorScope) -> Result<u64, OutboxError> {
    let done = match scope {
        OperatorScope::Id(id) => client.execute(&format!("{sql} WHERE id = $1"), &[id]).await,
        OperatorScope::Parked => client.execute(&format!("{sql} WHERE parked"), &[]).await,
    };
    done.map_err(database_error)
}
