//! Every statement on the table of records.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Result, params};
use semel::transactional::{Entry, Recorded, sql::sqlite as sql};
use semel_core::{Answer, Batch, Fence, Fenced, Fingerprint, RecordId, time::millis};

use crate::{BootClock as _, SystemClock, error::damaged};

/// Milliseconds since 1970.
fn now() -> i64 {
    signed(millis(SystemClock.wall()))
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
    let now = u64::try_from(SystemClock.wall().as_micros()).unwrap_or(u64::MAX);
    let next = |last: u64| last.saturating_add(1).max(now);
    let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
    last.ok().and_then(|last| Fence::new(next(last))).ok_or_else(|| damaged("a fence"))
}

/// The record, if there is one within its retention.
pub(super) fn lookup(connection: &Connection, id: &RecordId) -> Result<Option<Recorded>> {
    let now = now();
    let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
    let mut statement = connection.prepare_cached(sql::LOOKUP)?;
    let found = statement.query_row(params![scope, caller, key, now], |row| {
        let print = Fingerprint::try_from(row.get_ref(0)?.as_blob()?);
        let fence = Fence::new(row.get::<_, i64>(1)?.cast_unsigned());
        let answer = Answer::from_stored(Bytes::copy_from_slice(row.get_ref(2)?.as_blob()?));
        Ok(Recorded {
            fingerprint: print.map_err(|_| damaged("a fingerprint"))?,
            fence: fence.ok_or_else(|| damaged("a fence"))?,
            answer: answer.map_err(|_| damaged("an answer"))?,
            age: since(row.get(3)?, now),
            expires_in: since(now, row.get(4)?),
        })
    });
    found.optional()
}

/// Deletes a record that is past its retention, if there is one.
pub(super) fn drop_expired(connection: &Connection, id: &RecordId) -> Result<()> {
    let (scope, caller, key) = (id.scope.as_str(), id.caller.as_str(), id.key.as_str());
    let mut statement = connection.prepare_cached(sql::DROP)?;
    statement.execute(params![scope, caller, key, now()]).map(drop)
}

/// Adds a record, or changes nothing.
pub(super) fn record(connection: &Connection, entry: &Entry<'_>) -> Result<Fenced> {
    let Entry { id, fingerprint, fence, answer, retention } = entry;
    let now = now();
    let mut statement = connection.prepare_cached(sql::RECORD)?;
    let changed = statement.execute(params![
        id.scope.as_str(),
        id.caller.as_str(),
        id.key.as_str(),
        fingerprint.as_bytes(),
        fence.get().cast_signed(),
        &answer.as_bytes()[..],
        now,
        now.saturating_add(signed(millis(*retention))),
    ])?;
    Ok(if changed == 1 { Fenced::Applied } else { Fenced::Lost })
}

/// Deletes records past their retention, at most `limit`.
pub(super) fn sweep(connection: &Connection, limit: u32) -> Result<Batch> {
    let mut statement = connection.prepare_cached(sql::SWEEP)?;
    let done = u32::try_from(statement.execute(params![now(), limit])?).unwrap_or(u32::MAX);
    Ok(Batch::new(done, done >= limit))
}
