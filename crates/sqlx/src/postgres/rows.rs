//! Every statement on the table of records.

use std::time::Duration;

use bytes::Bytes;
use semel::{
    core::{Answer, Batch, Fence, Fingerprint, RecordId, time::millis},
    transactional::{BeginResult, Entry, RecordLookup, Recorded, sql::postgres as sql},
};
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, Error, PgConnection, Result, Row as _, postgres::PgRow};
use uuid::Uuid;

use crate::error::damaged;

/// The digest of scope, caller and key, and its first half as the number of the lock.
fn name(id: &RecordId) -> (Uuid, i64) {
    let mut hash = Sha256::new();
    for part in [id.scope.as_str(), id.caller.as_str(), id.key.as_str()] {
        // With its length, so that no two records have the same bytes.
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    let mut digest = [0; 16];
    digest.iter_mut().zip(hash.finalize()).for_each(|(to, byte)| *to = byte);
    let digest = Uuid::from_bytes(digest);
    (digest, digest.as_u64_pair().0.cast_signed())
}

/// The lock of an operation, held by a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationLock {
    /// The number of the transaction.
    pub(super) own: i64,
    /// The number of the table in which it looked for a record.
    pub(super) home: i64,
    /// Whether its snapshot is younger than the lock.
    pub(super) current: bool,
}

impl OperationLock {
    /// No lock so far: no transaction and no table have this number.
    pub(super) const NONE: Self = Self { own: 0, home: 0, current: false };
}

/// Takes the lock of an operation for a transaction that has done nothing else, in a snapshot that
/// is younger than the lock.
///
/// Above read committed, a transaction has the snapshot of its first statement, and that is the one
/// that takes the lock: a record that is committed between the two would not be seen. So the
/// session takes the lock as well, keeps it while the transaction is begun again, and gives it up
/// once the new transaction has it.
pub(super) async fn begin(
    connection: &mut PgConnection,
    id: &RecordId,
) -> Result<BeginResult<OperationLock>> {
    let begun = take(connection, id).await?;
    if !matches!(&begun, BeginResult::Free { transaction: held, .. } if !held.current) {
        return Ok(begun);
    }
    let lock = name(id).1;
    let unlock = format!("SELECT pg_catalog.pg_advisory_unlock({lock})");
    let again = format!("SELECT pg_catalog.pg_try_advisory_lock({lock}); ROLLBACK; BEGIN");
    sqlx::raw_sql(AssertSqlSafe(again)).execute(&mut *connection).await?;
    let begun = take(connection, id).await;
    // A transaction that has failed takes no statement, and a lock of the session would stay.
    let end = if begun.is_ok() { unlock } else { format!("ROLLBACK; {unlock}; BEGIN") };
    sqlx::raw_sql(AssertSqlSafe(end)).execute(connection).await?;
    begun
}

/// Takes the lock of an operation for this transaction.
pub(super) async fn take(
    connection: &mut PgConnection,
    id: &RecordId,
) -> Result<BeginResult<OperationLock>> {
    let (digest, lock) = name(id);
    let locked = sqlx::query(sql::LOCK).bind(lock);
    let locked = locked.fetch_one(&mut *connection).await?;
    let (own, home): (Option<i64>, i64) = (locked.try_get("own")?, locked.try_get("home")?);
    let (number, current): (i64, bool) = (locked.try_get("fence")?, locked.try_get("current")?);
    // In a separate statement, after the lock: its previous holder has committed.
    let row = read(connection, digest).await?;
    let found = row.as_ref().map(recorded).transpose()?;
    match (found, own) {
        (Some(Some(found)), _) => Ok(BeginResult::Recorded(found)),
        (_, None) => Ok(BeginResult::Running),
        (expired, Some(own)) => {
            if expired.is_some() {
                let drop = sqlx::query(sql::DROP).bind(digest);
                drop.execute(&mut *connection).await?;
            }
            Ok(BeginResult::Free {
                transaction: OperationLock { own, home, current },
                fence: fence(number)?,
            })
        }
    }
}

async fn read(connection: &mut PgConnection, digest: Uuid) -> Result<Option<PgRow>> {
    sqlx::query(sql::READ).bind(digest).fetch_optional(connection).await
}

pub(super) async fn lookup(connection: &mut PgConnection, id: &RecordId) -> Result<RecordLookup> {
    let (digest, lock) = name(id);
    for last in [false, true] {
        let row = read(connection, digest).await?;
        if let Some(found) = row.as_ref().map(recorded).transpose()?.flatten() {
            return Ok(RecordLookup::Recorded(found));
        }
        if !last {
            let running = sqlx::query(sql::RUNNING).bind(lock);
            if running.fetch_one(&mut *connection).await?.try_get("running")? {
                return Ok(RecordLookup::Running);
            }
        }
        // The holder of the lock may have committed since the record was read.
    }
    Ok(RecordLookup::Absent)
}

/// Adds a record in the transaction that has the lock.
pub(super) async fn record(
    connection: &mut PgConnection,
    entry: &Entry<'_>,
    held: OperationLock,
) -> Result<()> {
    let Entry { id, fingerprint, fence, answer, retention } = entry;
    sqlx::query(sql::RECORD)
        .bind(name(id).0)
        .bind(id.scope.as_str())
        .bind(id.caller.as_str())
        .bind(id.key.as_str())
        .bind(&fingerprint.as_bytes()[..])
        .bind(fence.get().cast_signed())
        .bind(held.own)
        .bind(&answer.as_bytes()[..])
        .bind(i64::try_from(millis(*retention)).unwrap_or(i64::MAX))
        .bind(held.home)
        .execute(connection)
        .await?;
    Ok(())
}

/// Deletes records past their retention, at most `limit`.
pub(super) async fn sweep(connection: &mut PgConnection, limit: u32) -> Result<Batch> {
    let sweep = sqlx::query(sql::SWEEP).bind(i64::from(limit));
    let done = sweep.execute(connection).await?.rows_affected();
    let done = u32::try_from(done).unwrap_or(u32::MAX);
    Ok(Batch::new(done, done >= limit))
}

/// The record in a row, unless it is past its retention.
fn recorded(row: &PgRow) -> Result<Option<Recorded>> {
    let print = row.try_get::<&[u8], _>("fingerprint")?;
    let now = micros(row, "now")?;
    let since = |earlier: i64, later: i64| u64::try_from(later.saturating_sub(earlier));
    let Ok(left) = since(now, micros(row, "expires_at")?) else { return Ok(None) };
    let age = since(micros(row, "recorded_at")?, now).unwrap_or(0);
    let answer = Answer::from_stored(Bytes::copy_from_slice(row.try_get("answer")?));
    Ok(Some(Recorded {
        fingerprint: Fingerprint::try_from(print).map_err(|_| damaged("a fingerprint"))?,
        fence: fence(row.try_get("fence")?)?,
        answer: answer.map_err(|_| damaged("an answer"))?,
        age: Duration::from_micros(age),
        expires_in: Duration::from_micros(left),
    }))
}

/// A time in the binary format: microseconds since 2000, in eight bytes. Decoding it by sqlx would
/// need a date library.
fn micros(row: &PgRow, name: &str) -> Result<i64> {
    let value = row.try_get_raw(name)?;
    let bytes = value.as_bytes().map_err(Error::Decode)?.try_into();
    bytes.map(i64::from_be_bytes).map_err(|_| damaged("a time"))
}

fn fence(number: i64) -> Result<Fence> {
    Fence::new(number.cast_unsigned()).ok_or_else(|| damaged("a fence"))
}

#[cfg(test)]
mod tests {
    use semel::core::{Caller, Key, Scope};

    use super::*;

    /// The same as that of `semel-postgres`, whose tests have these numbers too.
    #[test]
    fn the_name_of_a_record_is_known_to_other_programs() {
        let (scope, caller) = (Scope::new("orders").unwrap(), Caller::new("shop-3").unwrap());
        let (digest, lock) = name(&RecordId::new(scope, caller, Key::new("k-1").unwrap()));
        assert_eq!(digest.to_string(), "b419559d-4e0b-e293-4315-76a3e9cd8550");
        assert_eq!(lock, -5_469_246_138_357_128_557);
    }
}
