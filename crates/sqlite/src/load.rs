//! Reading the index from the file: all of it at opening, and what other processes added since.

use rusqlite::{Connection, Result};
use semel_core::StoreTime;

use crate::{error::damaged, shared::Shared, sweep::Sweeper};

/// Reads everything anew.
pub(crate) fn everything(
    connection: &Connection,
    shared: &Shared,
    sweeper: &mut Sweeper,
) -> Result<()> {
    shared.begin_load();
    shared.index.clear();
    shared.in_flight().clear();
    *sweeper = Sweeper::new(connection)?;
    // Both tables are walked side by side in the order of their ids, in one snapshot; a join would
    // look up each claim.
    let snapshot = connection.unchecked_transaction()?;
    let mut claims =
        snapshot.prepare("SELECT id, hash, retention, lease_until FROM claims ORDER BY id")?;
    let mut ends = snapshot.prepare("SELECT id FROM ends ORDER BY id")?;
    let mut claims = claims.query([])?;
    let mut ends = ends.query([])?;
    let mut ended: i64 = 0;
    let mut last = 0;
    while let Some(claim) = claims.next()? {
        let id: i64 = claim.get(0)?;
        while ended < id {
            ended = match ends.next()? {
                Some(row) => row.get(0)?,
                None => i64::MAX,
            };
        }
        shared.index.insert(claim.get(1)?, id);
        sweeper.learn(claim.get(2)?);
        if ended != id {
            shared.in_flight().insert(id, instant(claim.get(3)?)?);
        }
        last = id;
    }
    shared.index.set_last(last);
    shared.end_load();
    Ok(())
}

/// What is known of other processes that write to the file.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    /// Where the next look at their unfinished claims begins.
    look_from: i64,
}

/// Reads the claims that other processes have made since the last look. Numbers only rise, so they
/// are the ones above the greatest we know.
pub(crate) fn newer(
    connection: &Connection,
    shared: &Shared,
    sweeper: &mut Sweeper,
    neighbours: &mut Neighbours,
) -> Result<()> {
    let mut statement = connection.prepare_cached(
        "SELECT c.id, c.hash, c.retention, c.lease_until, e.id FROM claims c \
         LEFT JOIN ends e ON e.id = c.id WHERE c.id > ?1 ORDER BY c.id",
    )?;
    let mut rows = statement.query([shared.index.last()])?;
    let mut added = 0;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        shared.index.insert(row.get(1)?, id);
        sweeper.learn(row.get(2)?);
        if row.get::<_, Option<i64>>(4)?.is_none() {
            shared.in_flight().insert(id, instant(row.get(3)?)?);
        }
        shared.index.set_last(id);
        added += 1;
    }
    if added > 0 {
        neighbours.drop_ended(connection, shared, added + 64)?;
    }
    Ok(())
}

impl Neighbours {
    /// Looks at some of the claims in flight, as many as were added, so that those which another
    /// process has ended do not pile up.
    fn drop_ended(&mut self, connection: &Connection, shared: &Shared, looks: usize) -> Result<()> {
        let mut in_flight = shared.in_flight();
        let suspects: Vec<i64> =
            in_flight.range(self.look_from..).take(looks).map(|(number, _)| *number).collect();
        self.look_from = suspects.last().filter(|_| suspects.len() == looks).map_or(0, |n| n + 1);
        let mut ended = connection.prepare_cached("SELECT 1 FROM ends WHERE id = ?1")?;
        for number in suspects {
            if ended.exists([number])? {
                in_flight.remove(&number);
            }
        }
        Ok(())
    }
}

/// The greatest number in the file.
pub(crate) fn last(connection: &Connection) -> Result<i64> {
    let mut statement = connection.prepare_cached("SELECT ifnull(max(id), 0) FROM claims")?;
    statement.query_row([], |row| row.get(0))
}

pub(crate) fn instant(millis: i64) -> Result<StoreTime> {
    u64::try_from(millis).map(StoreTime::from_millis).map_err(|_| damaged("an instant"))
}
