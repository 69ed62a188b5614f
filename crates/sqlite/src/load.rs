//! Reading the file into memory: the whole index at opening, and what other processes added since.

use rusqlite::{Connection, Result};
use semel_core::StoreTime;

use crate::{
    error::damaged,
    shared::Shared,
    sweep::Sweeper,
    tables::{IN_FLIGHT, mark_in_flight},
};

/// Reads everything, at opening.
pub(crate) fn everything(
    connection: &Connection,
    shared: &Shared,
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
        sweeper.learn(row.get(4)?);
    }
    // The long runners are marked; of the rest only the newest claims need to be looked at.
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

/// What is known of other processes that write to the file.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Where the next look at their unfinished claims begins.
    look_from: i64,
}

/// Reads the claims that other processes have made since the last look. Numbers only rise, so they
/// are the ones above the greatest we know. Gives the latest instant of these claims.
pub(crate) fn newer(
    connection: &Connection,
    shared: &Shared,
    sweeper: &mut Sweeper,
    neighbours: &mut Neighbours,
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
        sweeper.learn(row.get(4)?);
        shared.in_flight().insert(id, lease_until(row.get(5)?, row.get(6)?)?);
        shared.index.set_last(id);
        latest = latest.max(row.get(5)?);
        added += 1;
    }
    if added > 0 {
        // Twice as many looks as additions: the list of suspects shrinks to what is in flight.
        neighbours.drop_ended(connection, shared, 2 * added + 64)?;
    }
    Ok(latest)
}

impl Neighbours {
    /// Looks at some of the claims in flight, so that those which another process has ended do not
    /// pile up.
    fn drop_ended(&mut self, connection: &Connection, shared: &Shared, looks: usize) -> Result<()> {
        let mut in_flight = shared.in_flight();
        let suspects: Vec<i64> =
            in_flight.range(self.look_from..).take(looks).map(|(number, _)| *number).collect();
        self.look_from = suspects.last().filter(|_| suspects.len() == looks).map_or(0, |n| n + 1);
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

/// Marks the claims up to `number` that are still in flight and says so in the file, so that the
/// next opening looks only at the claims after it. Gives the marked ones.
pub(crate) fn settle(connection: &Connection, shared: &Shared, number: i64) -> Result<Vec<i64>> {
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
    let note = "UPDATE meta SET value = ?1 WHERE name = 'settled'";
    connection.prepare_cached(note)?.execute([number])?;
    Ok(suspects)
}

/// The greatest number in the file.
pub(crate) fn last(connection: &Connection) -> Result<i64> {
    let mut statement = connection.prepare_cached("SELECT ifnull(max(id), 0) FROM claims")?;
    statement.query_row([], |row| row.get(0))
}

fn lease_until(claimed_at: i64, lease: i64) -> Result<StoreTime> {
    let millis = u64::try_from(claimed_at.saturating_add(lease));
    millis.map(StoreTime::from_millis).map_err(|_| damaged("an instant"))
}
