//! Reads, writes and deletes records: every statement on the tables of a record is here.

use std::{ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection, Result, Row, params};
use semel_core::{
    About, Answer, Caller, Captured, Claimant, Fence, Fingerprint, Key, NodeName, OnUnknown,
    OwnerToken, Reason, Record, RecordId, Scope, State, StoreTime, limit::LimitKeys,
    store::METADATA_ENTRIES_MAX, time::millis,
};

use crate::error::damaged;

/// The values of `states.state`, and the one that an answer stands for.
pub(crate) const IN_FLIGHT: i64 = 0;
pub(crate) const COMPLETED: i64 = 1;
pub(crate) const RELEASED: i64 = 2;
pub(crate) const HELD: i64 = 3;
pub(crate) const DELETED: i64 = 4;

/// The columns of a record, in the order that [`read`] takes them.
macro_rules! columns {
    ($answer:literal, $rest:literal) => {
        concat!(
            "SELECT c.id, c.retention, c.claimed_at, c.lease, c.attempt, c.on_unknown, c.owner, ",
            "c.fingerprint, c.scope, c.caller, c.key, ifnull(s.state, a.id IS NOT NULL), ",
            "ifnull(s.expires_at, a.expires_at), s.id IS NOT NULL, ",
            "ifnull(s.ended_at, a.ended_at), ifnull(s.reason, a.reason), c.about, c.node, ",
            "c.captured, c.hold_for, c.limits, ",
            $answer,
            " FROM claims c LEFT JOIN states s ON s.id = c.id LEFT JOIN answers a ON a.id = c.id ",
            $rest
        )
    };
}

/// Rows for a listing, without their answers.
pub(crate) const FROM_ID: &str = columns!("NULL", "WHERE c.id > ?1 ORDER BY c.id LIMIT ?2");
const BY_ID: &str = columns!("a.answer", "WHERE c.id = ?1");

/// A record in its tables.
#[derive(Clone, Debug)]
pub(crate) struct StoredRecord {
    pub(crate) record: Record,
    /// Whether it has a row in `states`.
    pub(crate) marked: bool,
}

/// The result of loading a row by its id.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "short-lived; a box would allocate each time")]
pub(crate) enum LoadResult {
    /// The record does not exist any more.
    Gone,
    /// It belongs to another scope, caller or key.
    Other,
    /// The record.
    Found(StoredRecord),
}

/// The record with the number `fence`, if it is the record `id`.
pub(crate) fn load(connection: &Connection, fence: i64, id: &RecordId) -> Result<LoadResult> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(LoadResult::Gone) };
    let same = row.get_ref(10)?.as_str()? == id.key.as_str()
        && row.get_ref(9)?.as_str()? == id.caller.as_str()
        && row.get_ref(8)?.as_str()? == id.scope.as_str();
    if !same {
        return Ok(LoadResult::Other);
    }
    Ok(read(row)?.map_or(LoadResult::Gone, LoadResult::Found))
}

/// The record with the number `fence`, of any scope, caller and key.
pub(crate) fn load_any(
    connection: &Connection,
    fence: i64,
) -> Result<Option<(RecordId, StoredRecord)>> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let Some(stored) = read(row)? else { return Ok(None) };
    Ok(Some((read_id(row)?, stored)))
}

/// The id of the record in a row.
pub(crate) fn read_id(row: &Row<'_>) -> Result<RecordId> {
    let scope = Scope::new(row.get_ref(8)?.as_str()?).map_err(|_| damaged("a scope"))?;
    let caller = Caller::from_stored(row.get_ref(9)?.as_str()?).map_err(|_| damaged("a caller"))?;
    let key = Key::new(row.get_ref(10)?.as_str()?).map_err(|_| damaged("a key"))?;
    Ok(RecordId::new(scope, caller, key))
}

/// The record in a row; `None` for one that an operator deleted. A listing reads rows without
/// answers; a placeholder stands for them and is not shown.
pub(crate) fn read(row: &Row<'_>) -> Result<Option<StoredRecord>> {
    let number = |column, what| -> Result<u64> {
        u64::try_from(row.get::<_, i64>(column)?).map_err(|_| damaged(what))
    };
    let instant = |column| number(column, "an instant").map(StoreTime::from_millis);
    let duration = |column| number(column, "a duration").map(Duration::from_millis);
    let retention = duration(1)?;
    let claimed_at = instant(2)?;
    let state = match row.get(11)? {
        IN_FLIGHT => State::InFlight { lease_until: claimed_at.after(duration(3)?) },
        COMPLETED => State::Completed(read_answer(row)?),
        RELEASED => State::Released,
        HELD => State::Held,
        DELETED => return Ok(None),
        _ => return Err(damaged("a state")),
    };
    let expires_at = match row.get::<_, Option<i64>>(12)? {
        None => claimed_at.after(retention),
        Some(_) => instant(12)?,
    };
    let owner = row.get_ref(6)?.as_blob()?.try_into();
    let owner = OwnerToken::from_bytes(owner.map_err(|_| damaged("an owner token"))?);
    let fence = Fence::new(number(0, "a fence")?).ok_or_else(|| damaged("a fence"))?;
    let mut record = Record::new(Claimant::new(fence, owner), claimed_at, state);
    record.fingerprint = match row.get_ref(7)?.as_blob_or_null()? {
        None => None,
        Some(bytes) => Some(Fingerprint::try_from(bytes).map_err(|_| damaged("a fingerprint"))?),
    };
    record.attempt = row.get(4)?;
    record.on_unknown = match row.get(5)? {
        0 => OnUnknown::Hold,
        1 => OnUnknown::Rerun,
        2 => OnUnknown::Fail,
        _ => return Err(damaged("a policy for unknown outcomes")),
    };
    record.retention = retention;
    record.expires_at = expires_at;
    record.ended_at = match row.get::<_, Option<i64>>(14)? {
        None => None,
        Some(_) => Some(instant(14)?),
    };
    record.reason = row.get_ref(15)?.as_str_or_null()?.map(Reason::from_stored);
    record.about = About::new(row.get_ref(16)?.as_str()?);
    record.node = NodeName::new(row.get_ref(17)?.as_str()?);
    record.captured = Captured::from_stored(row.get_ref(18)?.as_str()?);
    record.hold_for = match row.get::<_, Option<i64>>(19)? {
        None => None,
        Some(_) => Some(duration(19)?),
    };
    // A record that has ended keeps the column, and has settled its reservations.
    if matches!(record.state, State::InFlight { .. } | State::Held)
        && let Some(keys) = row.get_ref(20)?.as_blob_or_null()?
    {
        record.limits = LimitKeys::from_bytes(keys).ok_or_else(|| damaged("limits"))?;
    }
    Ok(Some(StoredRecord { record, marked: row.get(13)? }))
}

fn read_answer(row: &Row<'_>) -> Result<Answer> {
    match row.get_ref(21)?.as_blob_or_null()? {
        None => Ok(Answer::failed()),
        Some(bytes) => {
            Answer::from_stored(Bytes::copy_from_slice(bytes)).map_err(|_| damaged("an answer"))
        }
    }
}

/// The statements that nearly every record takes, prepared for one batch: the connection's cache of
/// statements compares and copies their text at each use.
pub(crate) struct RecordInserts<'c> {
    connection: &'c Connection,
    claim: CachedStatement<'c>,
    answer: CachedStatement<'c>,
}

impl<'c> RecordInserts<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Result<Self> {
        let claim = connection.prepare_cached(
            "INSERT INTO claims (id, retention, claimed_at, lease, attempt, on_unknown, owner, \
             fingerprint, scope, caller, key, about, node, captured, hold_for, limits) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        )?;
        let answer = connection.prepare_cached(
            "INSERT INTO answers (id, expires_at, ended_at, reason, answer) \
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        Ok(Self { connection, claim, answer })
    }
}

/// Writes `record` in place of `old`, which has the same fence or is deleted.
pub(crate) fn put(
    inserts: &mut RecordInserts<'_>,
    id: &RecordId,
    old: Option<&StoredRecord>,
    record: &Record,
) -> Result<()> {
    match old {
        Some(old) if old.record.fence == record.fence => change(inserts, old, record),
        Some(old) => {
            insert(inserts, id, record)?;
            let number = signed(old.record.fence.get());
            delete(inserts.connection, number..=number)
        }
        None => insert(inserts, id, record),
    }
}

fn insert(inserts: &mut RecordInserts<'_>, id: &RecordId, record: &Record) -> Result<()> {
    inserts.claim.execute(params![
        signed(record.fence.get()),
        signed(millis(record.retention)),
        signed(record.claimed_at.as_millis()),
        lease(record),
        record.attempt,
        match record.on_unknown {
            OnUnknown::Hold => 0,
            OnUnknown::Rerun => 1,
            OnUnknown::Fail => 2,
        },
        record.owner.as_bytes(),
        record.fingerprint.as_ref().map(Fingerprint::as_bytes),
        id.scope.as_str(),
        id.caller.as_str(),
        id.key.as_str(),
        record.about.as_str(),
        record.node.as_str(),
        record.captured.as_str(),
        record.hold_for.map(|hold_for| signed(millis(hold_for))),
        record.limits.to_bytes(),
    ])?;
    if matches!(record.state, State::InFlight { .. }) {
        return Ok(());
    }
    // A claim begins in flight; only an operator's act makes a row of a record that has ended.
    let resolved_at = record.ended_at.unwrap_or(record.claimed_at);
    let note = "INSERT INTO resolved (id, resolved_at) VALUES (?1, ?2)";
    let (number, resolved_at) = (signed(record.fence.get()), signed(resolved_at.as_millis()));
    inserts.connection.prepare_cached(note)?.execute([number, resolved_at])?;
    end(inserts, record)
}

/// Moves a record from one state to another under the same fence.
fn change(inserts: &mut RecordInserts<'_>, old: &StoredRecord, record: &Record) -> Result<()> {
    let connection = inserts.connection;
    let number = signed(record.fence.get());
    if record.attempt != old.record.attempt || record.fingerprint != old.record.fingerprint {
        let count = "UPDATE claims SET attempt = ?2, fingerprint = ?3 WHERE id = ?1";
        let fingerprint = record.fingerprint.as_ref().map(Fingerprint::as_bytes);
        connection.prepare_cached(count)?.execute(params![number, record.attempt, fingerprint])?;
    }
    if matches!(record.state, State::InFlight { .. }) {
        let renew = "UPDATE claims SET lease = ?2 WHERE id = ?1";
        return connection.prepare_cached(renew)?.execute([number, lease(record)]).map(drop);
    }
    if old.marked {
        connection.prepare_cached("DELETE FROM states WHERE id = ?1")?.execute([number])?;
    }
    end(inserts, record)
}

/// Writes how a record ended, if it did.
fn end(inserts: &mut RecordInserts<'_>, record: &Record) -> Result<()> {
    let number = signed(record.fence.get());
    let usual = record.claimed_at.after(record.retention);
    // What is past retention as soon as it ends may have been passed by the sweep already.
    let unusual = record.expires_at != usual || record.retention.is_zero();
    let expires_at = unusual.then_some(signed(record.expires_at.as_millis()));
    let ended_at = record.ended_at.map(|at| signed(at.as_millis()));
    let reason = record.reason.as_ref().map(ToString::to_string);
    let (state, hold_until) = match &record.state {
        State::InFlight { .. } => return Ok(()),
        State::Completed(answer) => {
            let ended_at = ended_at.unwrap_or_default();
            let answer = &answer.as_bytes()[..];
            let values = params![number, expires_at, ended_at, reason, answer];
            return inserts.answer.execute(values).map(drop);
        }
        State::Released => (RELEASED, None),
        State::Held => (HELD, hold_until(record)),
    };
    let mut statement = inserts.connection.prepare_cached(
        "INSERT INTO states (id, state, expires_at, ended_at, reason, hold_until) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?;
    statement.execute(params![number, state, expires_at, ended_at, reason, hold_until]).map(drop)
}

/// The last millisecond in which a held record waits for an operator.
fn hold_until(record: &Record) -> Option<i64> {
    let (held_at, hold_for) = record.ended_at.zip(record.hold_for)?;
    Some(signed(held_at.after(hold_for).as_millis()))
}

/// Whether an operator's act created the row: its number is not in the order of claims.
pub(crate) fn is_resolved(connection: &Connection, number: i64) -> Result<bool> {
    connection.prepare_cached("SELECT 1 FROM resolved WHERE id = ?1")?.exists([number])
}

/// The greatest number of a row from before `instant`: numbers rise with time.
pub(crate) fn last_before(connection: &Connection, instant: i64, last: i64) -> Result<i64> {
    let mut at = connection.prepare_cached(
        "SELECT c.id, ifnull(r.resolved_at, c.claimed_at) FROM claims c \
         LEFT JOIN resolved r ON r.id = c.id WHERE c.id > ?1 ORDER BY c.id LIMIT 1",
    )?;
    let (mut low, mut high) = (0, last);
    // A binary search: as many steps as a number has bits.
    while instant > 0 && low < high {
        let middle = low + (high - low) / 2;
        let mut rows = at.query([middle])?;
        match rows.next()? {
            Some(row) if row.get::<_, i64>(1)? < instant => low = row.get(0)?,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The rows after `after` that operators' acts created, at most `limit`.
pub(crate) fn resolved_after(
    connection: &Connection,
    after: i64,
    limit: usize,
) -> Result<Vec<i64>> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM resolved WHERE id > ?1 ORDER BY id LIMIT ?2")?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map([after, limit], |row| row.get(0))?.collect()
}

/// The held records whose `hold_for` has passed, at most `limit`.
pub(crate) fn held_too_long(connection: &Connection, now: i64, limit: usize) -> Result<Vec<i64>> {
    let mut statement = connection.prepare_cached(
        "SELECT id FROM states WHERE hold_until < ?1 ORDER BY hold_until LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    statement.query_map([now, limit], |row| row.get(0))?.collect()
}

fn lease(record: &Record) -> i64 {
    match record.state {
        State::InFlight { lease_until, .. } => signed(millis(lease_until.since(record.claimed_at))),
        State::Completed(_) | State::Released | State::Held => 0,
    }
}

/// Adds a row in `states` for a claim in flight, so that the next opening finds it without a
/// search.
pub(crate) fn mark_in_flight(connection: &Connection, number: i64) -> Result<()> {
    let mark = "INSERT INTO states (id, state) SELECT id, ?2 FROM claims WHERE id = ?1 \
                AND NOT EXISTS (SELECT 1 FROM answers WHERE id = ?1) \
                AND NOT EXISTS (SELECT 1 FROM states WHERE id = ?1)";
    connection.prepare_cached(mark)?.execute([number, IN_FLIGHT]).map(drop)
}

/// Deletes all records with these numbers.
pub(crate) fn delete(connection: &Connection, numbers: RangeInclusive<i64>) -> Result<()> {
    for delete in [
        "DELETE FROM answers WHERE id BETWEEN ?1 AND ?2",
        "DELETE FROM states WHERE id BETWEEN ?1 AND ?2",
        "DELETE FROM resolved WHERE id BETWEEN ?1 AND ?2",
        "DELETE FROM claims WHERE id BETWEEN ?1 AND ?2",
    ] {
        connection.prepare_cached(delete)?.execute([numbers.start(), numbers.end()])?;
    }
    Ok(())
}

/// Marks the record with this number as deleted, and leaves its row to a later sweep: the row with
/// the greatest number must stay, or the number would be issued again (law 11).
pub(crate) fn mark_deleted(connection: &Connection, number: i64) -> Result<()> {
    connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([number])?;
    let mark = "INSERT OR REPLACE INTO states (id, state) VALUES (?1, ?2)";
    connection.prepare_cached(mark)?.execute([number, DELETED]).map(drop)
}

/// The metadata below a prefix, ordered by name.
pub(crate) fn metadata(connection: &Connection, prefix: &str) -> Result<Vec<(Box<str>, Bytes)>> {
    let mut statement = connection.prepare_cached(
        "SELECT name, value FROM metadata WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 \
         ORDER BY name LIMIT ?2",
    )?;
    let entries = statement.query_map(params![prefix, METADATA_ENTRIES_MAX as i64], |row| {
        Ok((row.get_ref(0)?.as_str()?.into(), Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?)))
    })?;
    entries.collect()
}

/// Sets or removes a metadata entry.
pub(crate) fn set_metadata(
    connection: &Connection,
    name: &str,
    value: Option<&[u8]>,
) -> Result<()> {
    match value {
        Some(value) => connection
            .prepare_cached("INSERT OR REPLACE INTO metadata (name, value) VALUES (?1, ?2)")?
            .execute(params![name, value]),
        None => connection.prepare_cached("DELETE FROM metadata WHERE name = ?1")?.execute([name]),
    }
    .map(drop)
}

/// Converts to SQLite's signed integers; no stored number needs the sign bit.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn a_lookup_is_not_prepared_again_for_each_number() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        drop(crate::SqliteStore::open(&path).unwrap());
        let connection = crate::open::reader(&path).unwrap();
        let mut statement = connection.prepare(BY_ID).unwrap();
        for number in 1..10 {
            assert!(statement.query([number]).unwrap().next().unwrap().is_none());
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
