//! A record in its tables: how it is read, written and deleted. Every statement that touches a
//! record is here.

use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, Result, Row, params};
use semel_core::{
    Answer, Caller, Fence, Fingerprint, Key, OnUnknown, OwnerToken, Record, RecordId, Scope, State,
    StoreTime, time::millis,
};

use crate::error::damaged;

/// The values of `ends.state`.
pub(crate) const COMPLETED: i64 = 1;
pub(crate) const RELEASED: i64 = 2;
pub(crate) const HELD: i64 = 3;
pub(crate) const FORGOTTEN: i64 = 4;

/// The columns of a record, in the order that [`read`] takes them.
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "SELECT c.id, c.hash, c.retention, c.lease_until, c.claimed_at, c.attempt, ",
            "c.on_unknown, c.owner, c.fingerprint, c.scope, c.caller, c.key, e.state, ",
            "e.expires_at FROM claims c LEFT JOIN ends e ON e.id = c.id ",
            $rest
        )
    };
}

/// One row as a listing walks over it.
pub(crate) const FROM_ID: &str = columns!("WHERE c.id > ?1 ORDER BY c.id LIMIT ?2");
const BY_ID: &str = columns!("WHERE c.id = ?1");

/// What an id led to.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// There is no such record any more.
    Gone,
    /// It belongs to another scope, caller or key.
    Other,
    /// This.
    Found(Record),
}

/// The place of a record in the index: the first 64 bits of its digest.
pub(crate) fn hash(id: &RecordId) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = id.digest();
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The record with the number `fence`, if it is the record `id`.
pub(crate) fn load(connection: &Connection, fence: i64, id: &RecordId) -> Result<Loaded> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(Loaded::Gone) };
    let same = row.get_ref(11)?.as_str()? == id.key.as_str()
        && row.get_ref(10)?.as_str()? == id.caller.as_str()
        && row.get_ref(9)?.as_str()? == id.scope.as_str();
    if !same {
        return Ok(Loaded::Other);
    }
    Ok(read(connection, row)?.map_or(Loaded::Gone, Loaded::Found))
}

/// The record with the number `fence`, whosever it is.
pub(crate) fn load_any(connection: &Connection, fence: i64) -> Result<Option<(RecordId, Record)>> {
    let mut statement = connection.prepare_cached(BY_ID)?;
    let mut rows = statement.query([fence])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let Some(record) = read(connection, row)? else { return Ok(None) };
    Ok(Some((read_id(row)?, record)))
}

/// Whose record a row is.
pub(crate) fn read_id(row: &Row<'_>) -> Result<RecordId> {
    let scope = Scope::new(row.get_ref(9)?.as_str()?).map_err(|_| damaged("a scope"))?;
    let caller =
        Caller::from_stored(row.get_ref(10)?.as_str()?).map_err(|_| damaged("a caller"))?;
    let key = Key::new(row.get_ref(11)?.as_str()?).map_err(|_| damaged("a key"))?;
    Ok(RecordId::new(scope, caller, key))
}

/// The record in a row; `None` for one that was forgotten.
pub(crate) fn read(connection: &Connection, row: &Row<'_>) -> Result<Option<Record>> {
    let Some(mut record) = read_without_answer(row)? else { return Ok(None) };
    if let State::Completed(answer) = &mut record.state {
        *answer = read_answer(connection, record.fence)?;
    }
    Ok(Some(record))
}

/// The record in a row, its answer left out: for listings, which show none.
pub(crate) fn read_without_answer(row: &Row<'_>) -> Result<Option<Record>> {
    let instant = |column| -> Result<StoreTime> {
        let millis: i64 = row.get(column)?;
        Ok(StoreTime::from_millis(u64::try_from(millis).map_err(|_| damaged("an instant"))?))
    };
    let fence: i64 = row.get(0)?;
    let fence = u64::try_from(fence).ok().and_then(Fence::new).ok_or_else(|| damaged("a fence"))?;
    let retention: i64 = row.get(2)?;
    let retention = u64::try_from(retention).map_err(|_| damaged("a retention"))?;
    let retention = Duration::from_millis(retention);
    let claimed_at = instant(4)?;
    let fingerprint = Fingerprint::try_from(row.get_ref(8)?.as_blob()?);
    let owner = row.get_ref(7)?.as_blob()?.try_into().map_err(|_| damaged("an owner token"))?;
    let expires_at = match row.get::<_, Option<i64>>(13)? {
        None => claimed_at.after(retention),
        Some(_) => instant(13)?,
    };
    let state = match row.get::<_, Option<i64>>(12)? {
        None => State::InFlight { owner: OwnerToken::from_bytes(owner), lease_until: instant(3)? },
        Some(COMPLETED) => State::Completed(Answer::failed()),
        Some(RELEASED) => State::Released,
        Some(HELD) => State::Held,
        Some(FORGOTTEN) => return Ok(None),
        Some(_) => return Err(damaged("a state")),
    };
    Ok(Some(Record {
        fingerprint: fingerprint.map_err(|_| damaged("a fingerprint"))?,
        fence,
        attempt: row.get(5)?,
        on_unknown: match row.get(6)? {
            0 => OnUnknown::Hold,
            1 => OnUnknown::Rerun,
            2 => OnUnknown::Fail,
            _ => return Err(damaged("a policy for unknown outcomes")),
        },
        retention,
        claimed_at,
        expires_at,
        state,
    }))
}

fn read_answer(connection: &Connection, fence: Fence) -> Result<Answer> {
    let mut statement = connection.prepare_cached("SELECT answer FROM answers WHERE id = ?1")?;
    let bytes: Option<Bytes> = statement
        .query_row([signed(fence.get())], |row| {
            Ok(Bytes::copy_from_slice(row.get_ref(0)?.as_blob()?))
        })
        .optional()?;
    let bytes = bytes.ok_or_else(|| damaged("an answer"))?;
    Answer::from_stored(bytes).map_err(|_| damaged("an answer"))
}

/// Writes `record` in place of `old`, which has the same fence or is to go.
pub(crate) fn put(
    connection: &Connection,
    id: &RecordId,
    hash: i64,
    old: Option<&Record>,
    record: &Record,
) -> Result<()> {
    match old {
        Some(old) if old.fence == record.fence => change(connection, old, record),
        _ => {
            insert(connection, id, hash, record)?;
            match old {
                Some(old) => delete(connection, signed(old.fence.get())),
                None => Ok(()),
            }
        }
    }
}

fn insert(connection: &Connection, id: &RecordId, hash: i64, record: &Record) -> Result<()> {
    let (owner, lease_until) = match record.state {
        State::InFlight { owner, lease_until } => (owner, lease_until),
        State::Completed(_) | State::Released | State::Held => {
            (OwnerToken::from_bytes([0; 16]), record.claimed_at)
        }
    };
    let mut statement = connection.prepare_cached(
        "INSERT INTO claims (id, hash, retention, lease_until, claimed_at, attempt, on_unknown, \
         owner, fingerprint, scope, caller, key) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    statement.execute(params![
        signed(record.fence.get()),
        hash,
        signed(millis(record.retention)),
        signed(lease_until.as_millis()),
        signed(record.claimed_at.as_millis()),
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
fn change(connection: &Connection, old: &Record, record: &Record) -> Result<()> {
    let number = signed(record.fence.get());
    if let State::InFlight { lease_until, .. } = record.state {
        let renew = "UPDATE claims SET lease_until = ?2 WHERE id = ?1";
        let lease_until = signed(lease_until.as_millis());
        connection.prepare_cached(renew)?.execute([number, lease_until])?;
    }
    if record.attempt != old.attempt {
        let count = "UPDATE claims SET attempt = ?2 WHERE id = ?1";
        connection.prepare_cached(count)?.execute([number, i64::from(record.attempt)])?;
    }
    if old.state == State::Held {
        connection.prepare_cached("DELETE FROM ends WHERE id = ?1")?.execute([number])?;
    }
    end(connection, record)
}

/// Writes how a record ended, if it did.
fn end(connection: &Connection, record: &Record) -> Result<()> {
    let number = signed(record.fence.get());
    let state = match &record.state {
        State::InFlight { .. } => return Ok(()),
        State::Completed(answer) => {
            let insert = "INSERT INTO answers (id, answer) VALUES (?1, ?2)";
            let answer = answer.as_bytes();
            connection.prepare_cached(insert)?.execute(params![number, &answer[..]])?;
            COMPLETED
        }
        State::Released => RELEASED,
        State::Held => HELD,
    };
    let usual = record.claimed_at.after(record.retention);
    let expires_at = (record.expires_at != usual).then_some(signed(record.expires_at.as_millis()));
    let insert = "INSERT INTO ends (id, state, expires_at) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(insert)?.execute(params![number, state, expires_at])?;
    Ok(())
}

/// Deletes the record with this number.
pub(crate) fn delete(connection: &Connection, number: i64) -> Result<()> {
    for delete in [
        "DELETE FROM answers WHERE id = ?1",
        "DELETE FROM ends WHERE id = ?1",
        "DELETE FROM claims WHERE id = ?1",
    ] {
        connection.prepare_cached(delete)?.execute([number])?;
    }
    Ok(())
}

/// Makes the record with this number count as absent, and leaves its row to a later sweep: the row
/// with the greatest number must stay, or the number would be issued again (law 11).
pub(crate) fn forget(connection: &Connection, number: i64) -> Result<()> {
    connection.prepare_cached("DELETE FROM answers WHERE id = ?1")?.execute([number])?;
    let forget = "INSERT OR REPLACE INTO ends (id, state) VALUES (?1, ?2)";
    connection.prepare_cached(forget)?.execute([number, FORGOTTEN])?;
    Ok(())
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
