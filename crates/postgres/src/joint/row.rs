//! What goes into the table, and what comes out of it.

use std::time::Duration;

use bytes::Bytes;
use semel::joint::{Begun, Entry, Recorded, Seen};
use semel_core::{Answer, Fence, Fingerprint, RecordId, StoreError};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{digest::Digest, error::damaged, row::milliseconds};

pub(super) const TAKE: &str = include_str!("take.sql");
pub(super) const LOOK: &str = include_str!("look.sql");
pub(super) const DROP: &str = include_str!("drop.sql");
pub(super) const RECORD: &str = include_str!("record.sql");
pub(super) const SWEEP: &str = include_str!("sweep.sql");

/// A parameter and its type, so that no round trip is needed to ask for it.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Scope, caller and key, and the lock that stands for them.
pub(super) struct Name<'a> {
    pub(super) lock: i64,
    pub(super) scope: &'a str,
    pub(super) caller: &'a str,
    pub(super) key: &'a str,
}

impl<'a> Name<'a> {
    pub(super) fn of(id: &'a RecordId) -> Self {
        let lock = Digest::of(id).head().cast_signed();
        let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
        Self { lock, scope, caller, key }
    }

    pub(super) fn with_lock(&self) -> [Parameter<'_>; 4] {
        let [scope, caller, key] = self.alone();
        [(&self.lock, Type::INT8), scope, caller, key]
    }

    pub(super) fn alone(&self) -> [Parameter<'_>; 3] {
        [(&self.scope, Type::TEXT), (&self.caller, Type::TEXT), (&self.key, Type::TEXT)]
    }
}

/// The values of a row to be added by the transaction with the number `own`.
pub(super) struct Values<'a> {
    name: Name<'a>,
    fingerprint: &'a [u8],
    fence: i64,
    own: i64,
    answer: &'a [u8],
    retention: i64,
}

impl<'a> Values<'a> {
    pub(super) fn of(entry: &'a Entry<'_>, own: i64) -> Self {
        Self {
            name: Name::of(entry.id),
            fingerprint: entry.fingerprint.as_bytes(),
            fence: entry.fence.get().cast_signed(),
            own,
            answer: entry.answer.as_bytes(),
            retention: milliseconds(entry.retention),
        }
    }

    pub(super) fn all(&self) -> [Parameter<'_>; 8] {
        let [scope, caller, key] = self.name.alone();
        [
            scope,
            caller,
            key,
            (&self.fingerprint, Type::BYTEA),
            (&self.fence, Type::INT8),
            (&self.own, Type::INT8),
            (&self.answer, Type::BYTEA),
            (&self.retention, Type::INT8),
        ]
    }
}

/// What `take.sql` found.
pub(super) enum Taken {
    Begun(Begun<i64>),
    /// A record past its retention is in the way.
    Expired,
}

pub(super) fn taken(row: &Row) -> Result<Taken, StoreError> {
    let begun = match recorded(row)? {
        Some(None) => return Ok(Taken::Expired),
        Some(Some(found)) => Begun::Recorded(found),
        None => match row.try_get::<_, Option<i64>>("own").map_err(|_| damaged("a number"))? {
            None => Begun::Running,
            Some(own) => Begun::Free { transaction: own, fence: fence(own)? },
        },
    };
    Ok(Taken::Begun(begun))
}

pub(super) fn seen(row: &Row) -> Result<Seen, StoreError> {
    Ok(match recorded(row)?.flatten() {
        Some(found) => Seen::Recorded(found),
        None if row.try_get("running").unwrap_or(true) => Seen::Running,
        None => Seen::Absent,
    })
}

/// The record in a row, if there is one; `Some(None)` if it is past its retention.
fn recorded(row: &Row) -> Result<Option<Option<Recorded>>, StoreError> {
    let print = row.try_get::<_, Option<&[u8]>>("fingerprint");
    let Some(print) = print.map_err(|_| damaged("a fingerprint"))? else { return Ok(None) };
    let number = |name: &str| row.try_get::<_, i64>(name).map_err(|_| damaged("a number"));
    let Ok(left) = u64::try_from(number("left")?) else { return Ok(Some(None)) };
    let answer = row.try_get::<_, &[u8]>("answer").map_err(|_| damaged("an answer"))?;
    let answer = Answer::from_stored(Bytes::copy_from_slice(answer));
    Ok(Some(Some(Recorded {
        fingerprint: Fingerprint::try_from(print).map_err(|_| damaged("a fingerprint"))?,
        fence: fence(number("fence")?)?,
        answer: answer.map_err(|_| damaged("an answer"))?,
        age: Duration::from_millis(u64::try_from(number("age")?).unwrap_or(0)),
        expires_in: Duration::from_millis(left),
    })))
}

fn fence(number: i64) -> Result<Fence, StoreError> {
    Fence::new(number.cast_unsigned()).ok_or_else(|| damaged("a fence"))
}
