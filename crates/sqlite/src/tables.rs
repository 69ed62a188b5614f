//! A record in its tables: how it is read, written and deleted. Every statement that touches a
//! record is here.

use std::{ops::RangeInclusive, time::Duration};

use bytes::Bytes;
use rusqlite::{Connection, Result, Row, params};
use semel_core::{
    Answer, Caller, Fence, Fingerprint, Key, OnUnknown, OwnerToken, Record, RecordId, Scope, State,
    StoreTime, time::millis,
};

use crate::error::damaged;

/// The values of `states.state`, and the one that an answer stands for.
pub(crate) const IN_FLIGHT: i64 = 0;
pub(crate) const COMPLETED: i64 = 1;
pub(crate) const RELEASED: i64 = 2;
pub(crate) const HELD: i64 = 3;
pub(crate) const FORGOTTEN: i64 = 4;

/// The columns of a record, in the order that [`read`] takes them.
macro_rules! columns {
    ($answer:literal, $rest:literal) => {
        concat!(
            "SELECT c.id, c.retention, c.claimed_at, c.lease, c.attempt, c.on_unknown, c.owner, ",
            "c.fingerprint, c.scope, c.caller, c.key, ifnull(s.state, a.id IS NOT NULL), ",
            "ifnull(s.expires_at, a.expires_at), s.id IS NOT NULL, ",
            $answer,
            " FROM claims c LEFT JOIN states s ON s.id = c.id LEFT JOIN answers a ON a.id = c.id ",
            $rest
        )
    };
}

/// Rows as a listing walks over them, without their answers.
pub(crate) const FROM_ID: &str = columns!("NULL", "WHERE c.id > ?1 ORDER BY c.id LIMIT ?2");
const BY_ID: &str = columns!("a.answer", "WHERE c.id = ?1");

/// A record in its tables.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) record: Record,
    /// Whether it has a row in `states`.
    pub(crate) marked: bool,
}

/// What an id led to.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// There is no such record any more.
    Gone,
    /// It belongs to another scope, caller or key.
    Other,
    /// This.
    Found(Stored),
}

/// The record with the number `fence`, if it is the record `id`.
pub(crate) fn load(connection: &Connection, fence: i64, id: &RecordId) -> Result<Loaded> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(Loaded::Gone) };
    let same = row.get_ref(10)?.as_str()? == id.key.as_str()
        && row.get_ref(9)?.as_str()? == id.caller.as_str()
        && row.get_ref(8)?.as_str()? == id.scope.as_str();
    if !same {
        return Ok(Loaded::Other);
    }
    Ok(read(row)?.map_or(Loaded::Gone, Loaded::Found))
}

/// The record with the number `fence`, whosever it is.
pub(crate) fn load_any(connection: &Connection, fence: i64) -> Result<Option<(RecordId, Stored)>> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let Some(stored) = read(row)? else { return Ok(None) };
    Ok(Some((read_id(row)?, stored)))
}

/// Whose record a row is.
pub(crate) fn read_id(row: &Row<'_>) -> Result<RecordId> {
    let scope = Scope::new(row.get_ref(8)?.as_str()?).map_err(|_| damaged("a scope"))?;
    let caller = Caller::from_stored(row.get_ref(9)?.as_str()?).map_err(|_| damaged("a caller"))?;
    let key = Key::new(row.get_ref(10)?.as_str()?).map_err(|_| damaged("a key"))?;
    Ok(RecordId::new(scope, caller, key))
}

/// The record in a row; `None` for one that was forgotten. A listing reads rows without answers; it
/// gets another one in their place and shows none.
pub(crate) fn read(row: &Row<'_>) -> Result<Option<Stored>> {
    let number = |column, what| -> Result<u64> {
        u64::try_from(row.get::<_, i64>(column)?).map_err(|_| damaged(what))
    };
    let instant = |column| number(column, "an instant").map(StoreTime::from_millis);
    let duration = |column| number(column, "a duration").map(Duration::from_millis);
    let retention = duration(1)?;
    let claimed_at = instant(2)?;
    let state = match row.get(11)? {
        IN_FLIGHT => {
            let owner = row.get_ref(6)?.as_blob()?.try_into();
            let owner = OwnerToken::from_bytes(owner.map_err(|_| damaged("an owner token"))?);
            State::InFlight { owner, lease_until: claimed_at.after(duration(3)?) }
        }
        COMPLETED => State::Completed(read_answer(row)?),
        RELEASED => State::Released,
        HELD => State::Held,
        FORGOTTEN => return Ok(None),
        _ => return Err(damaged("a state")),
    };
    let expires_at = match row.get::<_, Option<i64>>(12)? {
        None => claimed_at.after(retention),
        Some(_) => instant(12)?,
    };
    let record = Record {
        fingerprint: Fingerprint::try_from(row.get_ref(7)?.as_blob()?)
            .map_err(|_| damaged("a fingerprint"))?,
        fence: Fence::new(number(0, "a fence")?).ok_or_else(|| damaged("a fence"))?,
        attempt: row.get(4)?,
        on_unknown: match row.get(5)? {
            0 => OnUnknown::Hold,
            1 => OnUnknown::Rerun,
            2 => OnUnknown::Fail,
            _ => return Err(damaged("a policy for unknown outcomes")),
        },
        retention,
        claimed_at,
        expires_at,
        state,
    };
    Ok(Some(Stored { record, marked: row.get(13)? }))
}

fn read_answer(row: &Row<'_>) -> Result<Answer> {
    match row.get_ref(14)?.as_blob_or_null()? {
        None => Ok(Answer::failed()),
        Some(bytes) => {
            Answer::from_stored(Bytes::copy_from_slice(bytes)).map_err(|_| damaged("an answer"))
        }
    }
}

/// Writes `record` in place of `old`, which has the same fence or is to go.
pub(crate) fn put(
    connection: &Connection,
    id: &RecordId,
    old: Option<&Stored>,
    record: &Record,
) -> Result<()> {
    match old {
        Some(old) if old.record.fence == record.fence => change(connection, old, record),
        Some(old) => {
            insert(connection, id, record)?;
            let number = signed(old.record.fence.get());
            delete(connection, number..=number)
        }
        None => insert(connection, id, record),
    }
}

fn insert(connection: &Connection, id: &RecordId, record: &Record) -> Result<()> {
    let owner = match &record.state {
        State::InFlight { owner, .. } => *owner,
        State::Completed(_) | State::Released | State::Held => OwnerToken::from_bytes([0; 16]),
    };
    let mut statement = connection.prepare_cached(
        "INSERT INTO claims (id, retention, claimed_at, lease, attempt, on_unknown, owner, \
         fingerprint, scope, caller, key) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    statement.execute(params![
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
        owner.as_bytes(),
        record.fingerprint.as_bytes(),
        id.scope.as_str(),
        id.caller.as_str(),
        id.key.as_str(),
    ])?;
    end(connection, record)
}

/// Moves a record from one state to another under the same fence.
fn change(connection: &Connection, old: &Stored, record: &Record) -> Result<()> {
    let number = signed(record.fence.get());
    if record.attempt != old.record.attempt {
        let count = "UPDATE claims SET attempt = ?2 WHERE id = ?1";
        connection.prepare_cached(count)?.execute([number, i64::from(record.attempt)])?;
    }
    if matches!(record.state, State::InFlight { .. }) {
        let renew = "UPDATE claims SET lease = ?2 WHERE id = ?1";
        return connection.prepare_cached(renew)?.execute([number, lease(record)]).map(drop);
    }
    if old.marked {
        connection.prepare_cached("DELETE FROM states WHERE id = ?1")?.execute([number])?;
    }
    end(connection, record)
}

/// Writes how a record ended, if it did.
fn end(connection: &Connection, record: &Record) -> Result<()> {
    let number = signed(record.fence.get());
    let usual = record.claimed_at.after(record.retention);
    // What is past retention as soon as it ends may have been passed by the sweep already.
    let unusual = record.expires_at != usual || record.retention.is_zero();
    let expires_at = unusual.then_some(signed(record.expires_at.as_millis()));
    let state = match &record.state {
        State::InFlight { .. } => return Ok(()),
        State::Completed(answer) => {
            let insert = "INSERT INTO answers (id, expires_at, answer) VALUES (?1, ?2, ?3)";
            let mut statement = connection.prepare_cached(insert)?;
            return statement
                .execute(params![number, expires_at, &answer.as_bytes()[..]])
                .map(drop);
        }
        State::Released => RELEASED,
        State::Held => HELD,
    };
    let insert = "INSERT INTO states (id, state, expires_at) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(insert)?.execute(params![number, state, expires_at]).map(drop)
}

fn lease(record: &Record) -> i64 {
    match record.state {
        State::InFlight { lease_until, .. } => signed(millis(lease_until.since(record.claimed_at))),
        State::Completed(_) | State::Released | State::Held => 0,
    }
}

/// Gives a claim a row in `states` if it is in flight, so that the next opening need not look for
/// it.
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
        "DELETE FROM claims WHERE id BETWEEN ?1 AND ?2",
    ] {
        connection.prepare_cached(delete)?.execute([numbers.start(), numbers.end()])?;
    }
    Ok(())
}

/// Makes the record with this number count as absent, and leaves its row to a later sweep: the row
/// with the greatest number must stay, or the number would be issued again (law 11).
pub(crate) fn forget(connection: &Connection, number: i64) -> Result<()> {
    connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([number])?;
    let forget = "INSERT OR REPLACE INTO states (id, state) VALUES (?1, ?2)";
    connection.prepare_cached(forget)?.execute([number, FORGOTTEN]).map(drop)
}

/// SQLite's integers have a sign; ours are far from using it.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn a_lookup_is_not_prepared_anew_for_each_number() {
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
