//! Deletes records past their retention, in small batches.
//!
//! There is no index on expiry: it would cost a random page per claim. Instead, records of one
//! retention (a *class*) expire in the order of their numbers, so each class has a cursor that
//! walks over the file, stops at the first claim that is younger than its retention, and skips what
//! is kept for longer. The retention of a record that is unfinished by then restarts when it
//! finishes, and such records do have an index, which is small.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result, Row};
use semel_core::{Batch, StoreTime};

use crate::{
    index::ClaimIndex,
    tables::{self, COMPLETED, DELETED, RELEASED, signed},
};

/// How many rows a cursor examines for each row that may be deleted.
const ROWS_EXAMINED_PER_DELETION: u32 = 8;

/// How many retentions have their own cursor. The others share one, and wait for the longest of
/// them.
const CLASSES_MAX: usize = 64;

/// Records whose retention restarted and has passed.
const RETENTION_RESTARTED: &str = "SELECT id FROM answers WHERE expires_at < ?1 UNION ALL \
                         SELECT id FROM states WHERE expires_at < ?1 LIMIT ?2";

#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// Retention in milliseconds, and the number up to which its class was swept.
    classes: BTreeMap<i64, i64>,
    /// The class of all other retentions, if there are any.
    others: Option<OtherRetentions>,
}

#[derive(Debug, Default)]
struct OtherRetentions {
    longest: i64,
    cursor: i64,
}

/// The result of a sweep.
#[derive(Debug, Default)]
pub(crate) struct SweepResult {
    pub(crate) batch: Batch,
    /// How many rows were deleted, those of an operator included.
    pub(crate) deleted: i64,
    /// What to remove from memory: with a hash from the index too.
    pub(crate) pending_removals: Vec<(Option<u64>, i64)>,
}

impl Sweeper {
    /// Adds a class for this retention.
    pub(crate) fn add_retention(&mut self, retention: i64) {
        if self.classes.len() < CLASSES_MAX {
            self.classes.entry(retention).or_insert(0);
        } else if !self.classes.contains_key(&retention) {
            let others = self.others.get_or_insert_default();
            others.longest = others.longest.max(retention);
        }
    }

    /// The longest retention of a record, in milliseconds.
    pub(crate) fn longest(&self) -> Option<i64> {
        let others = self.others.iter().map(|others| others.longest);
        self.classes.keys().copied().chain(others).max()
    }

    /// Restarts all cursors, after a rollback.
    pub(crate) fn restart(&mut self) {
        self.classes.values_mut().for_each(|cursor| *cursor = 0);
        self.others.iter_mut().for_each(|others| others.cursor = 0);
    }

    /// Deletes at most `limit` records.
    pub(crate) fn sweep(
        &mut self,
        connection: &Connection,
        index: &ClaimIndex,
        limit: u32,
        now: StoreTime,
    ) -> Result<SweepResult> {
        let mut pass = SweepPass {
            connection,
            index,
            now: signed(now.as_millis()),
            deletions_left: usize::try_from(limit).unwrap_or(usize::MAX),
            rows_left: usize::try_from(limit.saturating_mul(ROWS_EXAMINED_PER_DELETION))
                .unwrap_or(usize::MAX),
            swept: SweepResult::default(),
        };
        pass.sweep_deleted(limit)?;
        pass.sweep_restarted_retentions()?;
        let classes: Vec<(i64, i64)> = self.classes.iter().map(|(r, c)| (*r, *c)).collect();
        for (retention, cursor) in classes {
            self.classes.insert(retention, pass.sweep_class(cursor, retention)?);
        }
        if let Some(others) = &mut self.others {
            others.cursor = pass.sweep_class(others.cursor, others.longest)?;
        }
        pass.swept.batch.more = pass.deletions_left == 0 || pass.rows_left == 0;
        Ok(pass.swept)
    }
}

/// One call of [`Sweeper::sweep`].
struct SweepPass<'a> {
    connection: &'a Connection,
    index: &'a ClaimIndex,
    now: i64,
    deletions_left: usize,
    rows_left: usize,
    swept: SweepResult,
}

impl SweepPass<'_> {
    /// Deletes the rows of records that an operator deleted, except the one with the greatest
    /// number. They count as absent already, so no watcher is notified.
    fn sweep_deleted(&mut self, limit: u32) -> Result<()> {
        let deleted = "SELECT c.scope, c.caller, c.key, c.id FROM states s \
                         JOIN claims c ON c.id = s.id WHERE s.state = ?1 AND s.id < ?2 LIMIT ?3";
        let mut statement = self.connection.prepare_cached(deleted)?;
        let gone: Vec<(u64, i64)> = statement
            .query_map([DELETED, self.index.last(), i64::from(limit)], |row| {
                Ok((self.hash(row)?, row.get(3)?))
            })?
            .collect::<Result<_>>()?;
        for (hash, number) in gone {
            tables::delete(self.connection, number..=number)?;
            self.swept.deleted += 1;
            self.swept.pending_removals.push((Some(hash), number));
        }
        Ok(())
    }

    fn sweep_restarted_retentions(&mut self) -> Result<()> {
        let limit = i64::try_from(self.deletions_left).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare_cached(RETENTION_RESTARTED)?;
        let numbers: Vec<i64> =
            statement.query_map([self.now, limit], |row| row.get(0))?.collect::<Result<_>>()?;
        for number in numbers {
            if self.is_due(number)? {
                self.delete(number, number)?;
            }
        }
        Ok(())
    }

    /// Advances a cursor and returns its new position. It deletes every due record on the way, of
    /// other classes too, so that deletions form long runs.
    fn sweep_class(&mut self, mut cursor: i64, retention: i64) -> Result<i64> {
        let mut run: Option<(i64, i64)> = None;
        'file: while self.deletions_left > 0 && self.rows_left > 0 {
            let chunk =
                rows(self.connection, cursor, self.rows_left.min(self.deletions_left).min(256))?;
            if chunk.is_empty() {
                break;
            }
            for (number, its_retention, claimed_at) in chunk {
                let due = |retention| self.now > claimed_at.saturating_add(retention);
                if self.deletions_left == 0 || self.rows_left == 0 || !due(retention) {
                    break 'file;
                }
                self.rows_left -= 1;
                cursor = number;
                if due(its_retention) && self.is_due(number)? {
                    run = Some(run.map_or((number, number), |(first, _)| (first, number)));
                } else if let Some((first, last)) = run.take() {
                    self.delete(first, last)?;
                }
            }
        }
        if let Some((first, last)) = run {
            self.delete(first, last)?;
        }
        Ok(cursor)
    }

    /// Whether the record with this number is finished and past its retention. If so it is counted
    /// as swept, and the caller must delete it.
    fn is_due(&mut self, number: i64) -> Result<bool> {
        let mut statement = self.connection.prepare_cached(
            "SELECT c.scope, c.caller, c.key, ifnull(s.state, a.id IS NOT NULL), \
             ifnull(ifnull(s.expires_at, a.expires_at), c.claimed_at + c.retention) \
             FROM claims c LEFT JOIN states s ON s.id = c.id LEFT JOIN answers a ON a.id = c.id \
             WHERE c.id = ?1",
        )?;
        let mut rows = statement.query([number])?;
        let Some(row) = rows.next()? else { return Ok(false) };
        let finished = matches!(row.get(3)?, COMPLETED | RELEASED);
        if !finished || self.now <= row.get(4)? {
            return Ok(false);
        }
        // The row with the greatest number stays in the file, marked as deleted (law 11).
        let stays = number == self.index.last();
        let hash = if stays { None } else { Some(self.hash(row)?) };
        self.swept.deleted += i64::from(!stays);
        self.swept.pending_removals.push((hash, number));
        self.swept.batch.done += 1;
        self.deletions_left = self.deletions_left.saturating_sub(1);
        Ok(true)
    }

    /// Deletes all records from `first` to `last`.
    fn delete(&self, first: i64, last: i64) -> Result<()> {
        if last == self.index.last() {
            tables::mark_deleted(self.connection, last)?;
            return tables::delete(self.connection, first..=last - 1);
        }
        tables::delete(self.connection, first..=last)
    }

    /// The index hash of the record in the first three columns.
    fn hash(&self, row: &Row<'_>) -> Result<u64> {
        let text = |column| -> Result<&str> { Ok(row.get_ref(column)?.as_str()?) };
        Ok(self.index.hash(text(0)?, text(1)?, text(2)?))
    }
}

/// Number, retention and time of the claims after `after`.
fn rows(connection: &Connection, after: i64, limit: usize) -> Result<Vec<(i64, i64, i64)>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, retention, claimed_at FROM claims WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows =
        statement.query_map([after, limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_whose_retention_restarted_are_found_by_their_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        drop(crate::SqliteStore::open(&path).unwrap());
        let connection = crate::open::reader(&path).unwrap();
        let mut statement =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {RETENTION_RESTARTED}")).unwrap();
        let plan: Vec<String> =
            statement.query_map([1, 1], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        let used = plan.iter().filter(|line| line.contains("restarted")).count();
        assert_eq!(used, 2, "{plan:?}");
    }
}
