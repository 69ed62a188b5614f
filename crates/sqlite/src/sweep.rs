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

/// A row as a cursor passes it.
struct Row {
    number: i64,
    retention: i64,
    claimed_at: i64,
}

impl Row {
    /// Whether its retention has passed, counted from the claim as it usually is.
    fn is_due(&self, now: i64) -> bool {
        now > self.claimed_at.saturating_add(self.retention)
    }
}

/// What is to become of a row that is due by its claim.
enum Fate {
    /// It is gone, or forgotten.
    None,
    /// It is not finished, or began its retention anew.
    Later,
    /// It goes, and its entry at this place in the index with it.
    Swept(u64),
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
        index: &Index,
        limit: u32,
        now: StoreTime,
    ) -> Result<(Batch, Vec<(u64, i64)>)> {
        let mut round = Round {
            connection,
            index,
            now: signed(now.as_millis()),
            deletions: usize::try_from(limit).unwrap_or(usize::MAX),
            looks: usize::try_from(limit.saturating_mul(LOOK_FACTOR)).unwrap_or(usize::MAX),
            swept: Vec::new(),
        };
        sweep_forgotten(connection, index.last(), limit)?;
        self.sweep_later(&mut round)?;
        let classes: Vec<i64> = self.classes.keys().copied().collect();
        for class in classes {
            self.sweep_class(class, &mut round)?;
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

    fn sweep_later(&mut self, round: &mut Round<'_>) -> Result<()> {
        // A share of the looks, so that many unfinished records do not keep the cursors standing.
        let share = round.looks / 4;
        let mut numbers: Vec<i64> =
            self.later.range(self.later_from..).take(share).copied().collect();
        let rest = share - numbers.len();
        numbers.extend(self.later.range(..self.later_from).take(rest));
        self.later_from = numbers.last().map_or(0, |last| last + 1);
        for number in numbers {
            if round.deletions > 0 && !matches!(round.settle(number)?, Fate::Later) {
                self.later.remove(&number);
            }
        }
        Ok(())
    }

    fn sweep_class(&mut self, class: i64, round: &mut Round<'_>) -> Result<()> {
        let mut cursor = self.classes.get(&class).copied().unwrap_or(0);
        'file: while round.deletions > 0 && round.looks > 0 {
            let chunk = rows(round.connection, cursor, round.looks.min(256))?;
            if chunk.is_empty() {
                break;
            }
            for row in chunk {
                let ours = row.retention == class;
                if round.deletions == 0 || round.looks == 0 || (ours && !row.is_due(round.now)) {
                    break 'file;
                }
                round.looks -= 1;
                if ours && matches!(round.settle(row.number)?, Fate::Later) {
                    self.later.insert(row.number);
                }
                cursor = row.number;
            }
        }
        self.classes.insert(class, cursor);
        Ok(())
    }
}

/// One call of [`Sweeper::sweep`].
struct Round<'a> {
    connection: &'a Connection,
    index: &'a Index,
    now: i64,
    deletions: usize,
    looks: usize,
    swept: Vec<(u64, i64)>,
}

impl Round<'_> {
    /// Deletes the record with this number if its time has come.
    fn settle(&mut self, number: i64) -> Result<Fate> {
        let fate = self.fate(number)?;
        if let Fate::Swept(hash) = fate {
            // The row with the greatest number stays, forgotten (law 11).
            if number == self.index.last() {
                tables::forget(self.connection, number)?;
            } else {
                tables::delete(self.connection, number)?;
            }
            self.swept.push((hash, number));
            self.deletions = self.deletions.saturating_sub(1);
        }
        Ok(fate)
    }

    fn fate(&self, number: i64) -> Result<Fate> {
        let mut statement = self.connection.prepare_cached(
            "SELECT c.scope, c.caller, c.key, ifnull(s.state, a.id IS NOT NULL), \
             ifnull(ifnull(s.expires_at, a.expires_at), c.claimed_at + c.retention) \
             FROM claims c LEFT JOIN states s ON s.id = c.id LEFT JOIN answers a ON a.id = c.id \
             WHERE c.id = ?1",
        )?;
        let mut rows = statement.query([number])?;
        let Some(row) = rows.next()? else { return Ok(Fate::None) };
        match row.get(3)? {
            FORGOTTEN => Ok(Fate::None),
            COMPLETED | RELEASED if self.now > row.get(4)? => {
                let text = |column| -> Result<&str> { Ok(row.get_ref(column)?.as_str()?) };
                Ok(Fate::Swept(self.index.hash(text(0)?, text(1)?, text(2)?)))
            }
            _ => Ok(Fate::Later),
        }
    }
}

/// Deletes the rows of forgotten records, except the one with the greatest number. They count as
/// absent already, so nobody is told of it.
fn sweep_forgotten(connection: &Connection, last: i64, limit: u32) -> Result<()> {
    let forgotten = "SELECT id FROM states WHERE state = ?1 AND id < ?2 LIMIT ?3";
    let mut statement = connection.prepare_cached(forgotten)?;
    let numbers: Vec<i64> = statement
        .query_map([FORGOTTEN, last, i64::from(limit)], |row| row.get(0))?
        .collect::<Result<_>>()?;
    numbers.into_iter().try_for_each(|number| tables::delete(connection, number))
}

fn rows(connection: &Connection, after: i64, limit: usize) -> Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, retention, claimed_at FROM claims WHERE id > ?1 ORDER BY id LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = statement.query_map([after, limit], |row| {
        Ok(Row { number: row.get(0)?, retention: row.get(1)?, claimed_at: row.get(2)? })
    })?;
    rows.collect()
}

fn swept_in_all(connection: &Connection) -> Result<i64> {
    let swept = "SELECT value FROM meta WHERE name = 'swept'";
    connection.prepare_cached(swept)?.query_row([], |row| row.get(0))
}
