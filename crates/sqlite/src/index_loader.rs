//! Loads the index from the file: the whole index at opening, later the claims of other processes.

use rusqlite::{Connection, Result};
use semel_core::StoreTime;

use crate::{
    error::damaged,
    shared::SqliteShared,
    sweep::Sweeper,
    tables::{IN_FLIGHT, mark_in_flight},
};

/// Loads the whole index, at opening.
pub(crate) fn load_all(
    connection: &Connection,
    shared: &SqliteShared,
    sweeper: &mut Sweeper,
) -> Result<()> {
    let snapshot = connection.unchecked_transaction()?;
    let mut claims =
        snapshot.prepare("SELECT id, scope, caller, key, retention FROM claims ORDER BY id")?;
    let mut rows = claims.query([])?;
    while let Some(row) = rows.next()? {
        let text = |column| -> Result<&str> { Ok(row.get_ref(column)?.as_str()?) };
        let hash = shared.index.hash(text(1)?, text(2)?, text(3)?);
        let id = row.get(0)?;
        shared.index.insert_new(hash, id);
        shared.index.set_last(id);
        sweeper.add_retention(row.get(4)?);
    }
    // Long-running claims are marked; of the rest only the newest claims need to be examined.
    let mut in_flight = snapshot.prepare(
        "SELECT c.id, c.claimed_at, c.lease FROM states s JOIN claims c ON c.id = s.id \
         WHERE s.state = ?1 \
         UNION ALL SELECT c.id, c.claimed_at, c.lease FROM claims c \
         WHERE c.id > (SELECT value FROM meta WHERE name = 'settled') \
         AND NOT EXISTS (SELECT 1 FROM answers a WHERE a.id = c.id) \
         AND NOT EXISTS (SELECT 1 FROM states s WHERE s.id = c.id)",
    )?;
    let mut rows = in_flight.query([IN_FLIGHT])?;
    while let Some(row) = rows.next()? {
        shared.in_flight().insert(row.get(0)?, lease_until(row.get(1)?, row.get(2)?)?);
    }
    Ok(())
}

/// State about other processes that write to the file.
#[derive(Debug, Default)]
pub(crate) struct OtherProcesses {
    /// Where the next check of unfinished claims begins.
    next_number: i64,
}

/// Loads the claims that other processes have made since the last call. Claim numbers only
/// increase, so new claims are above the greatest known one. Returns the latest claim time.
pub(crate) fn load_new_claims(
    connection: &Connection,
    shared: &SqliteShared,
    sweeper: &mut Sweeper,
    other_processes: &mut OtherProcesses,
) -> Result<i64> {
    let mut statement = connection.prepare_cached(
        "SELECT id, scope, caller, key, retention, claimed_at, lease FROM claims WHERE id > ?1 \
         ORDER BY id",
    )?;
    let mut rows = statement.query([shared.index.last()])?;
    let (mut added, mut latest) = (0, 0);
    while let Some(row) = rows.next()? {
        let text = |column| -> Result<&str> { Ok(row.get_ref(column)?.as_str()?) };
        let hash = shared.index.hash(text(1)?, text(2)?, text(3)?);
        let id = row.get(0)?;
        shared.index.insert(hash, id);
        sweeper.add_retention(row.get(4)?);
        shared.in_flight().insert(id, lease_until(row.get(5)?, row.get(6)?)?);
        shared.index.set_last(id);
        latest = latest.max(row.get(5)?);
        added += 1;
    }
    if added > 0 {
        // Twice as many checks as additions, so that the list shrinks to the claims in flight.
        other_processes.drop_finished(connection, shared, 2 * added + 64)?;
    }
    Ok(latest)
}

impl OtherProcesses {
    /// Checks some of the claims in flight and removes those that another process has finished.
    fn drop_finished(
        &mut self,
        connection: &Connection,
        shared: &SqliteShared,
        limit: usize,
    ) -> Result<()> {
        let mut in_flight = shared.in_flight();
        let suspects: Vec<i64> =
            in_flight.range(self.next_number..).take(limit).map(|(number, _)| *number).collect();
        self.next_number = suspects.last().filter(|_| suspects.len() == limit).map_or(0, |n| n + 1);
        let mut ended = connection.prepare_cached(
            "SELECT 1 FROM answers WHERE id = ?1 \
             UNION ALL SELECT 1 FROM states WHERE id = ?1 AND state <> 0 \
             UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM claims WHERE id = ?1)",
        )?;
        for number in suspects {
            if ended.exists([number])? {
                in_flight.remove(&number);
            }
        }
        Ok(())
    }
}

/// Marks the claims up to `number` that are still in flight, and stores `number`: the next opening
/// examines only later claims. Returns the marked claims.
pub(crate) fn mark_settled(
    connection: &Connection,
    shared: &SqliteShared,
    number: i64,
) -> Result<Vec<i64>> {
    let settled = "SELECT value FROM meta WHERE name = 'settled'";
    let settled: i64 = connection.prepare_cached(settled)?.query_row([], |row| row.get(0))?;
    if number <= settled {
        return Ok(Vec::new());
    }
    let suspects: Vec<i64> =
        shared.in_flight().range(settled + 1..=number).map(|(number, _)| *number).collect();
    for suspect in &suspects {
        mark_in_flight(connection, *suspect)?;
    }
    let update = "UPDATE meta SET value = ?1 WHERE name = 'settled'";
    connection.prepare_cached(update)?.execute([number])?;
    Ok(suspects)
}

/// The greatest claim number in the file.
pub(crate) fn last_number(connection: &Connection) -> Result<i64> {
    let mut statement = connection.prepare_cached("SELECT ifnull(max(id), 0) FROM claims")?;
    statement.query_row([], |row| row.get(0))
}

fn lease_until(claimed_at: i64, lease: i64) -> Result<StoreTime> {
    let millis = u64::try_from(claimed_at.saturating_add(lease));
    millis.map(StoreTime::from_millis).map_err(|_| damaged("an instant"))
}
