//! What goes into the table, and what comes out of it.

use std::{borrow::Cow, time::SystemTime};

use bytes::Bytes;
use semel::joint::{Entry, Recorded};
use semel_core::{Answer, Fence, Fingerprint, RecordId, StoreError};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{digest::Digest, error::damaged, row::milliseconds};

pub(super) static LOCK: Sql = Sql::new(include_str!("lock.sql"), &[Type::INT8]);
pub(super) static READ: Sql = Sql::new(include_str!("read.sql"), &[Type::UUID]);
pub(super) static RUNNING: Sql = Sql::new(include_str!("running.sql"), &[Type::INT8]);
pub(super) static DROP: Sql = Sql::new(include_str!("drop.sql"), &[Type::UUID]);
pub(super) static SWEEP: Sql = Sql::new(include_str!("sweep.sql"), &[Type::INT8]);
pub(super) static RECORD: Sql = Sql::new(
    include_str!("record.sql"),
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

/// A statement, with the types of its parameters so that no round trip is needed to ask for them.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) text: Cow<'static, str>,
    pub(super) types: &'static [Type],
}

impl Sql {
    pub(super) const fn new(text: &'static str, types: &'static [Type]) -> Self {
        Self { text: Cow::Borrowed(text), types }
    }

    /// The same for the table of this name.
    pub(super) fn on(&self, table: &str) -> Self {
        Self { text: self.text.replace("semel_joint", table).into(), types: self.types }
    }

    /// What it is given, with the types of that.
    pub(super) fn typed<'a>(&self, given: &[Parameter<'a>]) -> Vec<(Parameter<'a>, Type)> {
        given.iter().copied().zip(self.types.iter().cloned()).collect()
    }
}

pub(super) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// The lock of an operation, as a transaction has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The number of the transaction.
    pub(super) own: i64,
    /// Its fence.
    pub(super) fence: i64,
    /// The number of the table in which it looked for a record.
    pub(super) home: i64,
}

impl Held {
    /// Nothing was taken so far: no transaction and no table have this number.
    pub(super) const NONE: Self = Self { own: 0, fence: 0, home: 0 };
}

/// What stands for scope, caller and key: in the table, and as a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) digest: Digest,
    pub(super) lock: i64,
}

impl Name {
    pub(super) fn of(id: &RecordId) -> Self {
        let digest = Digest::of(id);
        Self { digest, lock: digest.head().cast_signed() }
    }

    pub(super) fn lock(&self) -> [Parameter<'_>; 1] {
        [&self.lock]
    }

    pub(super) fn digest(&self) -> [Parameter<'_>; 1] {
        [&self.digest]
    }
}

/// The values of a row to be added by the transaction with the number `own`.
pub(super) struct Values<'a> {
    pub(super) digest: Digest,
    pub(super) scope: &'a str,
    pub(super) caller: &'a str,
    pub(super) key: &'a str,
    pub(super) fingerprint: &'a [u8],
    pub(super) fence: i64,
    pub(super) own: i64,
    pub(super) answer: &'a [u8],
    pub(super) retention: i64,
}

impl<'a> Values<'a> {
    pub(super) fn of(entry: &'a Entry<'_>, own: i64) -> Self {
        Self {
            digest: Digest::of(entry.id),
            scope: entry.id.scope.as_str(),
            caller: entry.id.caller.as_str(),
            key: entry.id.key.as_str(),
            fingerprint: entry.fingerprint.as_bytes(),
            fence: entry.fence.get().cast_signed(),
            own,
            answer: entry.answer.as_bytes(),
            retention: milliseconds(entry.retention),
        }
    }

    pub(super) fn all(&self) -> [Parameter<'_>; 9] {
        [
            &self.digest,
            &self.scope,
            &self.caller,
            &self.key,
            &self.fingerprint,
            &self.fence,
            &self.own,
            &self.answer,
            &self.retention,
        ]
    }
}

/// What there is, once the lock was asked for.
pub(super) enum Taken {
    Free(Fence),
    /// The same, but a record past its retention is in the way.
    Expired(Fence),
    Running,
    Recorded(Recorded),
}

/// What a record that is looked for under the lock, if it was taken, stands for.
pub(super) fn taken(held: Option<Held>, rows: &[Row]) -> Result<Taken, StoreError> {
    let found = rows.first().map(recorded).transpose()?;
    Ok(match (found, held) {
        (Some(Some(found)), _) => Taken::Recorded(found),
        (_, None) => Taken::Running,
        (Some(None), Some(held)) => Taken::Expired(fence(held.fence)?),
        (None, Some(held)) => Taken::Free(fence(held.fence)?),
    })
}

/// The lock, from the answer to [`LOCK`], if it was taken.
pub(super) fn held(rows: &[Row]) -> Result<Option<Held>, StoreError> {
    let row = rows.first().ok_or_else(|| damaged("a lock"))?;
    let own = row.try_get::<_, Option<i64>>("own");
    let own = own.map_err(|_| damaged("the number of a transaction"))?;
    let fence = row.try_get("fence").map_err(|_| damaged("a fence"))?;
    let home = row.try_get("home").map_err(|_| damaged("the number of a table"))?;
    Ok(own.map(|own| Held { own, fence, home }))
}

pub(super) fn read(rows: &[Row]) -> Result<Option<Recorded>, StoreError> {
    Ok(rows.first().map(recorded).transpose()?.flatten())
}

/// The record in a row, unless it is past its retention.
fn recorded(row: &Row) -> Result<Option<Recorded>, StoreError> {
    let print = row.try_get::<_, &[u8]>("fingerprint").map_err(|_| damaged("a fingerprint"))?;
    let time = |name: &str| row.try_get::<_, SystemTime>(name).map_err(|_| damaged("a time"));
    let now = time("now")?;
    let Ok(expires_in) = time("expires_at")?.duration_since(now) else { return Ok(None) };
    let answer = row.try_get::<_, &[u8]>("answer").map_err(|_| damaged("an answer"))?;
    let answer = Answer::from_stored(Bytes::copy_from_slice(answer));
    Ok(Some(Recorded {
        fingerprint: Fingerprint::try_from(print).map_err(|_| damaged("a fingerprint"))?,
        fence: fence(row.try_get("fence").map_err(|_| damaged("a fence"))?)?,
        answer: answer.map_err(|_| damaged("an answer"))?,
        age: now.duration_since(time("recorded_at")?).unwrap_or_default(),
        expires_in,
    }))
}

pub(super) fn fence(number: i64) -> Result<Fence, StoreError> {
    Fence::new(number.cast_unsigned()).ok_or_else(|| damaged("a fence"))
}
