//! Every statement on the table of records.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use semel::{
    core::{Answer, Batch, Fence, Fenced, Fingerprint, RecordId, time::millis},
    transactional::{Entry, Recorded, sql::sqlite as sql},
};
use sqlx::{Result, Row as _, SqliteConnection};

use crate::error::damaged;

/// Time since 1970.
fn wall() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Milliseconds since 1970.
fn now() -> i64 {
    signed(millis(wall()))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn since(earlier: i64, later: i64) -> Duration {
    Duration::from_millis(u64::try_from(later.saturating_sub(earlier)).unwrap_or(0))
}

/// A number for a transaction, higher than all earlier ones of this process.
///
/// It is the time in microseconds: a record is deleted only after its retention, so a later one has
/// a higher number in any process, unless the wall clock was set back by more than the retention.
pub(super) fn next_fence() -> Result<Fence> {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
    let next = |last: u64| last.saturating_add(1).max(now);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    last.ok().and_then(|last| Fence::new(next(last))).ok_or_else(|| damaged("a fence"))
}

/// The record, if there is one within its retention.
pub(super) async fn lookup(
    connection: &mut SqliteConnection,
    id: &RecordId,
) -> Result<Option<Recorded>> {
    let now = now();
    let lookup = sqlx::query(sql::LOOKUP)
        .bind(id.scope.as_str())
        .bind(id.caller.as_str())
        .bind(id.key.as_str())
        .bind(now);
    let Some(row) = lookup.fetch_optional(connection).await? else { return Ok(None) };
    let print = Fingerprint::try_from(row.try_get::<&[u8], _>(0)?);
    let answer = Answer::from_stored(Bytes::copy_from_slice(row.try_get(2)?));
    Ok(Some(Recorded {
        fingerprint: print.map_err(|_| damaged("a fingerprint"))?,
        fence: Fence::new(row.try_get::<i64, _>(1)?.cast_unsigned())
            .ok_or_else(|| damaged("a fence"))?,
        answer: answer.map_err(|_| damaged("an answer"))?,
        age: since(row.try_get(3)?, now),
        expires_in: since(now, row.try_get(4)?),
    }))
}

/// Deletes a record that is past its retention, if there is one.
pub(super) async fn drop_expired(connection: &mut SqliteConnection, id: &RecordId) -> Result<()> {
    let delete = sqlx::query(sql::DROP)
        .bind(id.scope.as_str())
        .bind(id.caller.as_str())
        .bind(id.key.as_str())
        .bind(now());
    delete.execute(connection).await.map(drop)
}

/// Adds a record, or changes nothing.
pub(super) async fn record(connection: &mut SqliteConnection, entry: &Entry<'_>) -> Result<Fenced> {
    let Entry { id, fingerprint, fence, answer, retention } = entry;
    let now = now();
    let insert = sqlx::query(sql::RECORD)
        .bind(id.scope.as_str())
        .bind(id.caller.as_str())
        .bind(id.key.as_str())
        .bind(&fingerprint.as_bytes()[..])
        .bind(fence.get().cast_signed())
        .bind(&answer.as_bytes()[..])
        .bind(now)
        .bind(now.saturating_add(signed(millis(*retention))));
    let changed = insert.execute(connection).await?.rows_affected();
    Ok(if changed == 1 { Fenced::Applied } else { Fenced::Lost })
}

/// Deletes records past their retention, at most `limit`.
pub(super) async fn sweep(connection: &mut SqliteConnection, limit: u32) -> Result<Batch> {
    let sweep = sqlx::query(sql::SWEEP).bind(now()).bind(limit);
    let done = sweep.execute(connection).await?.rows_affected();
    let done = u32::try_from(done).unwrap_or(u32::MAX);
    Ok(Batch::new(done, done >= limit))
}
