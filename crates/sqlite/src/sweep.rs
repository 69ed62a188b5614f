//! Deleting what retention has passed, in small batches.
//!
//! There is no index on expiry: it would cost a random page per claim. Instead, records of one
//! retention (a *class*) expire in the order of their numbers, so each class has a cursor that
//! walks over the file behind its own expiry, passes over the rows of other classes, and stops at
//! the first of its own that is not due. What was due by its claim but is not finished, or began
//! its retention anew, is remembered and looked at again in each round.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, Result};
use semel_core::{Batch, StoreTime};

use crate::{
    index::Index,
    tables::{self, COMPLETED, FORGOTTEN, RELEASED, signed},
};

/// How many rows a cursor passes over for each that may be deleted.
const LOOK_FACTOR: u32 = 8;

/// How many unfinished rows are remembered; beyond that the cursors start over.
const LATER_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Sweeper {
    /// Retention in milliseconds, and the number up to which its class has been swept.
    classes: BTreeMap<i64, i64>,
    later: BTreeSet<i64>,
    /// Where the next look at `later` begins.
    later_from: i64,
    /// How many records all processes have swept, as far as this one accounted for in its index.
    swept_known: i64,
    swept_in_all: i64,
}

/// What a sweep needs to know of a row.
struct Row {
    number: i64,
    hash: i64,
    retention: i64,
    claimed_at: i64,
    state: Option<i64>,
    expires_at: Option<i64>,
}

impl Row {
    fn due_by_claim(&self, now: i64) -> bool {
        now > self.claimed_at.saturating_add(self.retention)
    }

    fn is_past_retention(&self, now: i64) -> bool {
        match self.state {
            Some(COMPLETED | RELEASED) => match self.expires_at {
                Some(expires_at) => now > expires_at,
                None => self.due_by_claim(now),
            },
            _ => false,
        }
    }
}

impl Sweeper {
    pub(crate) fn new(connection: &Connection) -> Result<Self> {
        let swept = swept_in_all(connection)?;
        Ok(Self { swept_known: swept, swept_in_all: swept, ..Self::default() })
    }

    /// There are records of this retention.
    pub(crate) fn learn(&mut self, retention: i64) {
        self.classes.entry(retention).or_insert(0);
    }

    /// Walks the file again from its beginning, after a batch was undone or too much is left for
    /// later.
    pub(crate) fn start_over(&mut self) {
        self.later.clear();
        self.classes.values_mut().for_each(|cursor| *cursor = 0);
    }

    /// Whether other processes have swept so much that the index is mostly about records that are
    /// gone.
    pub(crate) fn makes_stale(&self, index: &Index) -> bool {
        let foreign = usize::try_from(self.swept_in_all - self.swept_known).unwrap_or_default();
        foreign > 10_000 && foreign > index.len() / 2
    }

    /// Deletes at most `limit` records and says which, as `(hash, number)`.
    pub(crate) fn sweep(
        &mut self,
        connection: &Connection,
        limit: u32,
        now: StoreTime,
        last: i64,
    ) -> Result<(Batch, Vec<(i64, i64)>)> {
        let mut round = Round {
            now: signed(now.as_millis()),
            last,
            deletions: usize::try_from(limit).unwrap_or(usize::MAX),
            looks: usize::try_from(limit.saturating_mul(LOOK_FACTOR)).unwrap_or(usize::MAX),
            swept: Vec::new(),
        };
        sweep_forgotten(connection, last, limit)?;
        self.sweep_later(connection, &mut round)?;
        let classes: Vec<i64> = self.classes.keys().copied().collect();
        for class in classes {
            self.sweep_class(connection, class, &mut round)?;
        }
        if self.later.len() > LATER_MAX {
            self.start_over();
        }
        let done = i64::try_from(round.swept.len()).unwrap_or(i64::MAX);
        if done > 0 {
            let count = "UPDATE meta SET value = value + ?1 WHERE name = 'swept'";
            connection.prepare_cached(count)?.execute([done])?;
        }
        self.swept_known += done;
        self.swept_in_all = swept_in_all(connection)?;
        let more = round.deletions == 0 || round.looks == 0;
        let done = u32::try_from(done).unwrap_or(u32::MAX);
        Ok((Batch { done, more }, round.swept))
    }

    fn sweep_later(&mut self, connection: &Connection, round: &mut Round) -> Result<()> {
        // A share of the looks, so that many unfinished records do not keep the cursors standing.
        let share = round.looks / 4;
        let mut numbers: Vec<i64> =
            self.later.range(self.later_from..).take(share).copied().collect();
        if numbers.len() < share {
            let rest = share - numbers.len();
            numbers.extend(self.later.range(..self.later_from).take(rest));
        }
        self.later_from = numbers.last().map_or(0, |last| last + 1);
        for number in numbers {
            let row = rows(connection, number - 1, 1)?.pop().filter(|row| row.number == number);
            match row {
                None => {
                    self.later.remove(&number);
                }
                Some(row) if round.may_delete(&row) => {
                    round.delete(connection, &row)?;
                    self.later.remove(&number);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn sweep_class(
        &mut self,
        connection: &Connection,
        class: i64,
        round: &mut Round,
    ) -> Result<()> {
        let mut cursor = self.classes.get(&class).copied().unwrap_or(0);
        'file: while round.deletions > 0 && round.looks > 0 {
            let chunk = rows(connection, cursor, round.looks.min(256))?;
            if chunk.is_empty() {
                break;
            }
            for row in chunk {
                if round.deletions == 0 || round.looks == 0 {
                    break 'file;
                }
                if row.retention == class && !row.due_by_claim(round.now) {
                    break 'file;
                }
                round.looks -= 1;
                if row.retention == class && row.state != Some(FORGOTTEN) {
                    if round.may_delete(&row) {
                        round.delete(connection, &row)?;
                    } else {
                        self.later.insert(row.number);
                    }
                }
                cursor = row.number;
            }
        }
        self.classes.insert(class, cursor);
        Ok(())
    }
}

/// One call of [`Sweeper::sweep`].
struct Round {
    now: i64,
    /// The greatest number in the file. Its row stays, forgotten (law 11).
    last: i64,
    deletions: usize,
    looks: usize,
    swept: Vec<(i64, i64)>,
}

impl Round {
    fn may_delete(&self, row: &Row) -> bool {
        self.deletions > 0 && row.is_past_retention(self.now)
    }

    fn delete(&mut self, connection: &Connection, row: &Row) -> Result<()> {
        if row.number == self.last {
            tables::forget(connection, row.number)?;
        } else {
            tables::delete(connection, row.number)?;
        }
        self.swept.push((row.hash, row.number));
        self.deletions = self.deletions.saturating_sub(1);
        Ok(())
    }
}

/// Deletes the rows of forgotten records, except the one with the greatest number. They count as
/// absent already, so nobody is told of it.
fn sweep_forgotten(connection: &Connection, last: i64, limit: u32) -> Result<()> {
    // Without the second condition the partial index is not used and a sweep reads all of `ends`.
    let forgotten = "SELECT id FROM ends WHERE state = ?1 AND state <> 1 AND id < ?2 LIMIT ?3";
    let mut statement = connection.prepare_cached(forgotten)?;
    let numbers: Vec<i64> = statement
        .query_map([FORGOTTEN, last, i64::from(limit)], |row| row.get(0))?
        .collect::<Result<_>>()?;
    numbers.into_iter().try_for_each(|number| tables::delete(connection, number))
}

fn rows(connection: &Connection, after: i64, limit: usize) -> Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(
        "SELECT c.id, c.hash, c.retention, c.claimed_at, e.state, e.expires_at \
         FROM claims c LEFT JOIN ends e ON e.id = c.id WHERE c.id > ?1 ORDER BY c.id LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([after, limit], |row| {
        Ok(Row {
            number: row.get(0)?,
            hash: row.get(1)?,
            retention: row.get(2)?,
            claimed_at: row.get(3)?,
            state: row.get(4)?,
            expires_at: row.get(5)?,
        })
    })?;
    rows.collect()
}

fn swept_in_all(connection: &Connection) -> Result<i64> {
    let swept = "SELECT value FROM meta WHERE name = 'swept'";
    connection.prepare_cached(swept)?.query_row([], |row| row.get(0))
}
