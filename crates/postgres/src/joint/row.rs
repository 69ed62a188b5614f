//! What goes into the table, and what comes out of it.

use std::time::SystemTime;

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

/// What stands for scope, caller and key: in the table, and as a lock.
pub(super) struct Name {
    digest: Digest,
    lock: i64,
}

impl Name {
    pub(super) fn of(id: &RecordId) -> Self {
        let digest = Digest::of(id);
        Self { digest, lock: digest.head().cast_signed() }
    }

    pub(super) fn with_lock(&self) -> [Parameter<'_>; 2] {
        [(&self.lock, Type::INT8), (&self.digest, Type::UUID)]
    }

    pub(super) fn alone(&self) -> [Parameter<'_>; 1] {
        [(&self.digest, Type::UUID)]
    }
}

/// The values of a row to be added by the transaction with the number `own`.
pub(super) struct Values<'a> {
    digest: Digest,
    scope: &'a str,
    caller: &'a str,
    key: &'a str,
    fingerprint: &'a [u8],
    fence: i64,
    own: i64,
    answer: &'a [u8],
    retention: i64,
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
            (&self.digest, Type::UUID),
            (&self.scope, Type::TEXT),
            (&self.caller, Type::TEXT),
            (&self.key, Type::TEXT),
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
        None if !row.try_get("got").unwrap_or(false) => Begun::Running,
        None => {
            let own = row.try_get("own").map_err(|_| damaged("a number"))?;
            Begun::Free { transaction: own, fence: fence(own)? }
        }
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
    let time = |name: &str| row.try_get::<_, SystemTime>(name).map_err(|_| damaged("a time"));
    let now = time("now")?;
    let Ok(expires_in) = time("expires_at")?.duration_since(now) else { return Ok(Some(None)) };
    let answer = row.try_get::<_, &[u8]>("answer").map_err(|_| damaged("an answer"))?;
    let answer = Answer::from_stored(Bytes::copy_from_slice(answer));
    Ok(Some(Some(Recorded {
        fingerprint: Fingerprint::try_from(print).map_err(|_| damaged("a fingerprint"))?,
        fence: fence(row.try_get("fence").map_err(|_| damaged("a fence"))?)?,
        answer: answer.map_err(|_| damaged("an answer"))?,
        age: now.duration_since(time("recorded_at")?).unwrap_or_default(),
        expires_in,
    })))
}

fn fence(number: i64) -> Result<Fence, StoreError> {
    Fence::new(number.cast_unsigned()).ok_or_else(|| damaged("a fence"))
}
