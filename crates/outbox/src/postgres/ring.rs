//! Retention: three parts of the table take turns, and the oldest one is truncated.
//!
//! New messages go to the current part. A part is the current one for at least the retention. The
//! next one in turn was the current one before the previous part, so whatever is in it is older
//! than the retention; it is truncated once it is delivered, which leaves no dead rows.

use std::time::Duration;

use tokio_postgres::{Client, error::SqlState};

use super::database_error;
use crate::OutboxError;

const PARTS: i16 = 3;

/// Truncates the next part if it is delivered, and makes it the current one after the retention.
pub(super) async fn turn(client: &mut Client, retention: Duration) -> Result<(), OutboxError> {
    let sql = "SELECT part, extract(epoch FROM clock_timestamp() - rotated_at)::double precision
        FROM semel_outbox_state";
    let row = client.query_one(sql, &[]).await.map_err(database_error)?;
    let (part, age): (i16, f64) = (row.get(0), row.get(1));
    let next = part.wrapping_add(1).rem_euclid(PARTS);
    if !is_empty(client, next).await? && !truncate(client, next).await? {
        return Ok(());
    }
    if age < retention.as_secs_f64() || is_empty(client, part).await? {
        return Ok(());
    }
    let sql = "UPDATE semel_outbox_state SET part = $1, rotated_at = clock_timestamp()
        WHERE part = $2";
    client.execute(sql, &[&next, &part]).await.map(drop).map_err(database_error)
}

async fn is_empty(client: &Client, part: i16) -> Result<bool, OutboxError> {
    let sql = format!("SELECT NOT EXISTS (SELECT FROM semel_outbox_message_{part})");
    let row = client.query_one(&sql, &[]).await.map_err(database_error)?;
    Ok(row.get(0))
}

/// Truncates a part, unless it is in use or has an undelivered message.
async fn truncate(client: &mut Client, part: i16) -> Result<bool, OutboxError> {
    let transaction = client.transaction().await.map_err(database_error)?;
    // A reader, and an open transaction that wrote to the part, goes first.
    let lock =
        format!("LOCK TABLE ONLY semel_outbox_message_{part} IN ACCESS EXCLUSIVE MODE NOWAIT");
    if let Err(error) = transaction.batch_execute(&lock).await {
        let in_use = error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        return if in_use { Ok(false) } else { Err(database_error(error)) };
    }
    let drained = include_str!("../sql/postgres/drained.sql");
    let row = transaction.query_one(drained, &[&part]).await.map_err(database_error)?;
    if row.get("undelivered") {
        return Ok(false);
    }
    let truncate = format!("TRUNCATE ONLY semel_outbox_message_{part}");
    transaction.batch_execute(&truncate).await.map_err(database_error)?;
    transaction.commit().await.map_err(database_error)?;
    Ok(true)
}
