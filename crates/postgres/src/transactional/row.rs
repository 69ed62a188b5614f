//! The statements on the table of records, their parameters and their rows.

use std::{borrow::Cow, time::SystemTime};

use bytes::Bytes;
use semel::transactional::{Entry, Recorded, sql::postgres as sql};
use semel_core::{Answer, Fence, Fingerprint, RecordId, StoreError};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{digest::Digest, error::corrupt, row::milliseconds};

pub(super) static LOCK: TypedSql = TypedSql::new(sql::LOCK, &[Type::INT8]);
pub(super) static READ: TypedSql = TypedSql::new(sql::READ, &[Type::UUID]);
pub(super) static RUNNING: TypedSql = TypedSql::new(sql::RUNNING, &[Type::INT8]);
pub(super) static DROP: TypedSql = TypedSql::new(sql::DROP, &[Type::UUID]);
pub(super) static SWEEP: TypedSql = TypedSql::new(sql::SWEEP, &[Type::INT8]);
pub(super) static RECORD: TypedSql = TypedSql::new(
    sql::RECORD,
    &[
        Type::UUID,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
    ],
);

/// A statement with the types of its parameters, which saves the round trip that prepares it.
#[derive(Debug)]
pub(super) struct TypedSql {
    pub(super) text: Cow<'static, str>,
    pub(super) types: &'static [Type],
}

impl TypedSql {
    pub(super) const fn new(text: &'static str, types: &'static [Type]) -> Self {
        Self { text: Cow::Borrowed(text), types }
    }

    /// The same statement on the table of this name.
    pub(super) fn on(&self, table: &str) -> Self {
        Self { text: self.text.replace("semel_transactional", table).into(), types: self.types }
    }

    /// Parameters with their types.
    pub(super) fn typed<'a>(&self, given: &[SqlParameter<'a>]) -> Vec<(SqlParameter<'a>, Type)> {
        given.iter().copied().zip(self.types.iter().cloned()).collect()
    }
}

pub(super) type SqlParameter<'a> = &'a (dyn ToSql + Sync);

/// The lock that a transaction holds for an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLock {
    /// The transaction id in PostgreSQL.
    pub(super) transaction_id: i64,
    /// Its fence.
    pub(super) fence: i64,
    /// The OID of the table in which the record was looked up, if that is checked.
    pub(super) table_oid: i64,
    /// Whether the snapshot of the transaction is younger than the lock.
    pub(super) current: bool,
}

impl HeldLock {
    /// No lock: no transaction and no table have the number 0.
    pub(super) const NONE: Self =
        Self { transaction_id: 0, fence: 0, table_oid: 0, current: false };
}

/// Stands for scope, caller and key: as the primary key, and as an advisory lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordKey {
    pub(super) digest: Digest,
    pub(super) lock: i64,
}

impl RecordKey {
    pub(super) fn of(id: &RecordId) -> Self {
        let digest = Digest::of(id);
        Self { digest, lock: digest.head().cast_signed() }
    }

    pub(super) fn lock(&self) -> [SqlParameter<'_>; 1] {
        [&self.lock]
    }

    pub(super) fn digest(&self) -> [SqlParameter<'_>; 1] {
        [&self.digest]
    }
}

/// The values of a row that a transaction inserts.
pub(super) struct RecordValues<'a> {
    pub(super) digest: Digest,
    pub(super) scope: &'a str,
    pub(super) caller: &'a str,
    pub(super) key: &'a str,
    pub(super) fingerprint: &'a [u8],
    pub(super) fence: i64,
    pub(super) transaction_id: i64,
    pub(super) answer: &'a [u8],
    pub(super) retention: i64,
}

impl<'a> RecordValues<'a> {
    pub(super) fn of(entry: &'a Entry<'_>, transaction_id: i64) -> Self {
        Self {
            digest: Digest::of(entry.id),
            scope: entry.id.scope.as_str(),
            caller: entry.id.caller.as_str(),
            key: entry.id.key.as_str(),
            fingerprint: entry.fingerprint.as_bytes(),
            fence: entry.fence.get().cast_signed(),
            transaction_id,
            answer: entry.answer.as_bytes(),
            retention: milliseconds(entry.retention),
        }
    }

    pub(super) fn all(&self) -> [SqlParameter<'_>; 9] {
        [
            &self.digest,
            &self.scope,
            &self.caller,
            &self.key,
            &self.fingerprint,
            &self.fence,
            &self.transaction_id,
            &self.answer,
            &self.retention,
        ]
    }
}

/// The result of a lookup after the attempt to take the lock.
pub(super) enum LockedLookup {
    Free(Fence),
    /// The same, but an expired record has to be deleted first.
    Expired(Fence),
    Running,
    Recorded(Recorded),
}

/// Combines the lock, if it was taken, with the rows of the lookup.
pub(super) fn taken(held: Option<HeldLock>, rows: &[Row]) -> Result<LockedLookup, StoreError> {
    let found = rows.first().map(recorded).transpose()?;
    Ok(match (found, held) {
        (Some(Some(found)), _) => LockedLookup::Recorded(found),
        (_, None) => LockedLookup::Running,
        (Some(None), Some(held)) => LockedLookup::Expired(fence(held.fence)?),
        (None, Some(held)) => LockedLookup::Free(fence(held.fence)?),
    })
}

/// The lock from the reply to [`LOCK`], if it was taken.
pub(super) fn held(rows: &[Row]) -> Result<Option<HeldLock>, StoreError> {
    let row = rows.first().ok_or_else(|| corrupt("a lock"))?;
    let transaction_id = row.try_get::<_, Option<i64>>("own");
    let transaction_id = transaction_id.map_err(|_| corrupt("a transaction id"))?;
    let fence = row.try_get("fence").map_err(|_| corrupt("a fence"))?;
    let table_oid = row.try_get("home").unwrap_or(0);
    let current = row.try_get("current").map_err(|_| corrupt("an isolation level"))?;
    Ok(transaction_id.map(|transaction_id| HeldLock { transaction_id, fence, table_oid, current }))
}

pub(super) fn read(rows: &[Row]) -> Result<Option<Recorded>, StoreError> {
    Ok(rows.first().map(recorded).transpose()?.flatten())
}

/// The record in a row, unless it is past its retention.
fn recorded(row: &Row) -> Result<Option<Recorded>, StoreError> {
    let print = row.try_get::<_, &[u8]>("fingerprint").map_err(|_| corrupt("a fingerprint"))?;
    let time = |name: &str| row.try_get::<_, SystemTime>(name).map_err(|_| corrupt("a time"));
    let now = time("now")?;
    let Ok(expires_in) = time("expires_at")?.duration_since(now) else { return Ok(None) };
    let answer = row.try_get::<_, &[u8]>("answer").map_err(|_| corrupt("an answer"))?;
    let answer = Answer::from_stored(Bytes::copy_from_slice(answer));
    Ok(Some(Recorded {
        fingerprint: Fingerprint::try_from(print).map_err(|_| corrupt("a fingerprint"))?,
        fence: fence(row.try_get("fence").map_err(|_| corrupt("a fence"))?)?,
        answer: answer.map_err(|_| corrupt("an answer"))?,
        age: now.duration_since(time("recorded_at")?).unwrap_or_default(),
        expires_in,
    }))
}

pub(super) fn fence(number: i64) -> Result<Fence, StoreError> {
    Fence::new(number.cast_unsigned()).ok_or_else(|| corrupt("a fence"))
}
