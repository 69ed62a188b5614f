//! Deleting what retention has passed, in small batches.
//!
//! There is no index on expiry: it would cost a random page per claim. Instead, records of one
//! retention (a *class*) expire in the order of their numbers, so each class has a cursor that
//! walks over the file, stops at the first claim that is younger than its retention, and passes
//! over what is to be kept for longer. What is not finished by then will begin its retention anew
//! when it is, and such records do have an index, which is small.

use std::collections::BTreeMap;

use rusqlite::{Connection, Result, Row};
use semel_core::{Batch, StoreTime};

use crate::{
    index::Index,
    tables::{self, COMPLETED, DELETED, RELEASED, signed},
};

/// How many rows a cursor passes over for each that may be deleted.
const LOOK_FACTOR: u32 = 8;

/// How many retentions have a cursor of their own. The others share one, and wait for the longest
/// of them.
const CLASSES_MAX: usize = 64;

/// Records whose retention began anew and has passed.
const KEPT_ANEW: &str = "SELECT id FROM answers WHERE expires_at < ?1 UNION ALL \
                         SELECT id FROM states WHERE expires_at < ?1 LIMIT ?2";

#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// Retention in milliseconds, and the number up to which its class has been swept.
    classes: BTreeMap<i64, i64>,
    /// The class of all other retentions, where there are any.
    others: Option<Others>,
}

#[derive(Debug, Default)]
struct Others {
    longest: i64,
    cursor: i64,
}

/// What a sweep did.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(crate) batch: Batch,
    /// How many rows were deleted, those of an operator included.
    pub(crate) deleted: i64,
    /// What leaves the index.
    pub(crate) leaving: Vec<(Option<u64>, i64)>,
}

impl Sweeper {
    /// There are records of this retention.
    pub(crate) fn learn(&mut self, retention: i64) {
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

    /// Walks the file again from its beginning, after a batch was undone.
    pub(crate) fn start_over(&mut self) {
        self.classes.values_mut().for_each(|cursor| *cursor = 0);
        self.others.iter_mut().for_each(|others| others.cursor = 0);
    }

    /// Deletes at most `limit` records.
    pub(crate) fn sweep(
        &mut self,
        connection: &Connection,
        index: &Index,
        limit: u32,
        now: StoreTime,
    ) -> Result<Swept> {
        let mut round = Round {
            connection,
            index,
            now: signed(now.as_millis()),
            deletions: usize::try_from(limit).unwrap_or(usize::MAX),
            looks: usize::try_from(limit.saturating_mul(LOOK_FACTOR)).unwrap_or(usize::MAX),
            swept: Swept::default(),
        };
        round.sweep_deleted(limit)?;
        round.sweep_kept_anew()?;
        let classes: Vec<(i64, i64)> = self.classes.iter().map(|(r, c)| (*r, *c)).collect();
        for (retention, cursor) in classes {
            self.classes.insert(retention, round.sweep_class(cursor, retention)?);
        }
        if let Some(others) = &mut self.others {
            others.cursor = round.sweep_class(others.cursor, others.longest)?;
        }
        round.swept.batch.more = round.deletions == 0 || round.looks == 0;
        Ok(round.swept)
    }
}

/// One call of [`Sweeper::sweep`].
struct Round<'a> {
    connection: &'a Connection,
    index: &'a Index,
    now: i64,
    deletions: usize,
    looks: usize,
    swept: Swept,
}

impl Round<'_> {
    /// Deletes the rows of records that an operator deleted, except the one with the greatest
    /// number. They count as absent already, so nobody is told of it.
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
            self.swept.leaving.push((Some(hash), number));
        }
        Ok(())
    }

    fn sweep_kept_anew(&mut self) -> Result<()> {
        let limit = i64::try_from(self.deletions).unwrap_or(i64::MAX);
        let mut statement = self.connection.prepare_cached(KEPT_ANEW)?;
        let numbers: Vec<i64> =
            statement.query_map([self.now, limit], |row| row.get(0))?.collect::<Result<_>>()?;
        for number in numbers {
            if self.is_due(number)? {
                self.delete(number, number)?;
            }
        }
        Ok(())
    }

    /// Moves a cursor on, and gives where it stands then. On its way it takes whatever is due, also
    /// of other classes, so that what goes, goes in long runs.
    fn sweep_class(&mut self, mut cursor: i64, retention: i64) -> Result<i64> {
        let mut run: Option<(i64, i64)> = None;
        'file: while self.deletions > 0 && self.looks > 0 {
            let chunk = rows(self.connection, cursor, self.looks.min(self.deletions).min(256))?;
            if chunk.is_empty() {
                break;
            }
            for (number, its_retention, claimed_at) in chunk {
                let due = |retention| self.now > claimed_at.saturating_add(retention);
                if self.deletions == 0 || self.looks == 0 || !due(retention) {
                    break 'file;
                }
                self.looks -= 1;
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

    /// Whether the record with this number is finished and its time has come. If so it is counted
    /// as swept; whoever asks must delete it.
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
        self.swept.leaving.push((hash, number));
        self.swept.batch.done += 1;
        self.deletions = self.deletions.saturating_sub(1);
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

    /// The place of the record that the first three columns name.
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
    fn the_records_that_were_kept_anew_are_found_by_their_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        drop(crate::SqliteStore::open(&path).unwrap());
        let connection = crate::open::reader(&path).unwrap();
        let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {KEPT_ANEW}")).unwrap();
        let plan: Vec<String> =
            statement.query_map([1, 1], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        let used = plan.iter().filter(|line| line.contains("kept_anew")).count();
        assert_eq!(used, 2, "{plan:?}");
    }
}
