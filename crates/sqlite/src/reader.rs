//! The threads that read, each on a connection of its own.
//!
//! They do short point reads and hold no transaction open for longer, so that the log can always be
//! written back. Nothing is ever decided on what they find.

use std::sync::Arc;

use rusqlite::{Connection, Result, params};
use semel_core::{
    Cursor, Epoch, ListQuery, Page, Record, RecordId, Snapshot, StateName, StoreError,
    StoreErrorKind, Summary, rules, time::millis,
};

use crate::{
    clock::StoreClock,
    error::store_error,
    load, open,
    queue::{Ask, Question, Told},
    shared::Shared,
    tables::{self, FROM_ID, HELD, Loaded, RELEASED, signed},
};

/// How many rows one page of a listing looks at.
const LOOKS_MAX: usize = 5000;

#[derive(Debug)]
pub(crate) struct Reader {
    shared: Arc<Shared>,
    connection: Connection,
    clock: StoreClock,
    /// Which opening of the file the connection belongs to.
    opening: u64,
}

/// What a look at the file gave.
#[expect(clippy::large_enum_variant, reason = "short-lived; a box would allocate each time")]
enum Look {
    Found(Option<Record>),
    /// Other processes have made claims that the index does not know.
    Foreign,
    /// Our own writer has committed just now.
    Outdated,
}

impl Reader {
    pub(crate) const fn new(
        shared: Arc<Shared>,
        connection: Connection,
        clock: StoreClock,
    ) -> Self {
        Self { shared, connection, clock, opening: 0 }
    }

    /// Serves the queue until it is closed.
    pub(crate) fn run(mut self) {
        let idle = std::time::Duration::from_secs(1);
        while let Some(questions) = self.shared.reads.take(1, idle) {
            for question in questions {
                match self.follow_writer() {
                    Ok(()) => self.serve(question),
                    Err(error) => question.answer(Err(error)),
                }
            }
        }
    }

    /// Reads nothing while the file is not the one that was opened, and opens it again after the
    /// writer has.
    fn follow_writer(&mut self) -> Result<(), StoreError> {
        let opening = self.shared.openings();
        if let Some(outage) = self.shared.outage() {
            return Err(outage.error());
        }
        if opening != self.opening {
            // The new connection comes first: SQLite deletes the log with the last one.
            self.connection = open::reader(&self.shared.path)?;
            self.opening = opening;
        }
        Ok(())
    }

    fn serve(&self, question: Question) {
        let told = match &question.ask {
            Ask::Get(id) => self.get(id).map(|seen| Told::Got(seen.map(Box::new))),
            Ask::List(query) => self.list(query).map(Told::Page),
            Ask::Epoch => self.epoch().map(Told::Epoch),
            Ask::Metadata(prefix) => {
                let found = self.in_snapshot(|| tables::metadata(&self.connection, prefix));
                found.map(Told::Metadata)
            }
            Ask::Claim(..)
            | Ask::Renew(..)
            | Ask::Finish(..)
            | Ask::Resolve(..)
            | Ask::Reap(_)
            | Ask::Sweep(_)
            | Ask::SetMetadata(..)
            | Ask::CatchUp => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "a reader cannot write"))
            }
        };
        question.answer(told);
    }

    fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let mut caught_up = false;
        for _ in 0..4 {
            match self.in_snapshot(|| self.look(id, caught_up))? {
                Look::Found(record) => return Ok(rules::view(record.as_ref(), self.clock.now())),
                Look::Foreign => {
                    self.catch_up()?;
                    caught_up = true;
                }
                Look::Outdated => {}
            }
        }
        // A claim whose commit is still under way is not there yet.
        Ok(None)
    }

    /// Once our writer has caught up, the index has everything from before the question; only what
    /// was taken over since may be missed.
    fn look(&self, id: &RecordId, caught_up: bool) -> Result<Look> {
        let last = load::last(&self.connection)?;
        let foreign = last > self.shared.index.last();
        if foreign && !caught_up {
            return Ok(Look::Foreign);
        }
        let (mut invisible, mut gone) = (false, false);
        for number in self.shared.index.candidates(self.shared.index.hash_of(id)).iter() {
            match tables::load(&self.connection, number, id)? {
                Loaded::Found(stored) => return Ok(Look::Found(Some(stored.record))),
                // Committed after our snapshot was taken: its predecessor may have left the index.
                Loaded::Gone if number > last => invisible = true,
                Loaded::Gone => gone = true,
                Loaded::Other => {}
            }
        }
        Ok(match (invisible, foreign && gone) {
            (_, true) => Look::Foreign,
            (true, false) => Look::Outdated,
            (false, false) => Look::Found(None),
        })
    }

    fn catch_up(&self) -> Result<(), StoreError> {
        let answer = self.shared.writes.push(Ask::CatchUp)?.blocking_recv();
        let gone = |_| StoreError::new(StoreErrorKind::Unavailable, "the writer has stopped");
        answer.map_err(gone)?.map(drop)
    }

    fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.catch_up()?;
        self.in_snapshot(|| {
            let after = query.after.map_or(0, |cursor| i64::try_from(cursor.0).unwrap_or(i64::MAX));
            if let Some(key) = &query.key {
                let numbers = self.shared.index.with_key(key.as_str(), after, LOOKS_MAX);
                return self.list_numbers(query, &numbers);
            }
            match query.state {
                _ if query.lapsed => self.list_open(query, after),
                Some(StateName::InFlight | StateName::Held) => self.list_open(query, after),
                Some(StateName::Released) => {
                    let numbers = self.numbers_in(RELEASED, after, LOOKS_MAX)?;
                    self.list_numbers(query, &numbers)
                }
                Some(StateName::Completed) | None => self.list_all(query, after),
            }
        })
    }

    /// Records that are in flight or held: few, and found without walking the file.
    fn list_open(&self, query: &ListQuery, after: i64) -> Result<Page> {
        let from = after.saturating_add(1);
        let mut numbers: Vec<i64> =
            self.shared.in_flight().range(from..).take(LOOKS_MAX).map(|(n, _)| *n).collect();
        let held = self.numbers_in(HELD, after, LOOKS_MAX)?;
        numbers.extend(held);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(LOOKS_MAX);
        self.list_numbers(query, &numbers)
    }

    fn numbers_in(&self, state: i64, after: i64, limit: usize) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM states WHERE state = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        statement.query_map([state, after, limit], |row| row.get(0))?.collect()
    }

    fn list_numbers(&self, query: &ListQuery, numbers: &[i64]) -> Result<Page> {
        let mut page = Paging::new(query);
        for number in numbers {
            if page.is_full() {
                return Ok(page.cut());
            }
            match tables::load_any(&self.connection, *number)? {
                Some((id, stored)) => page.see(*number, id, &stored.record, &self.clock),
                None => page.pass(*number),
            }
        }
        Ok(if numbers.len() >= LOOKS_MAX { page.cut() } else { page.end() })
    }

    fn list_all(&self, query: &ListQuery, after: i64) -> Result<Page> {
        let now = self.clock.now();
        let oldest =
            query.age_max.map_or(0, |age| signed(now.as_millis().saturating_sub(millis(age))));
        let newest = signed(now.as_millis().saturating_sub(millis(query.age_min)));
        let after = after.max(self.last_claimed_before(oldest)?);
        let mut statement = self.connection.prepare_cached(FROM_ID)?;
        let limit = i64::try_from(LOOKS_MAX).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![after, limit])?;
        let mut page = Paging::new(query);
        let mut looks = 0;
        while let Some(row) = rows.next()? {
            if page.is_full() {
                return Ok(page.cut());
            }
            looks += 1;
            let number = row.get(0)?;
            // Claims rise with their numbers: nothing after this one is old enough.
            if row.get::<_, i64>(2)? > newest {
                page.pass(number);
                return Ok(page.end());
            }
            match tables::read(row)? {
                Some(stored) => {
                    page.see(number, tables::read_id(row)?, &stored.record, &self.clock);
                }
                None => page.pass(number),
            }
        }
        Ok(if looks >= LOOKS_MAX { page.cut() } else { page.end() })
    }

    /// The greatest number that was claimed before `instant`. Claims rise with their numbers, so it
    /// is found in as many steps as a number has bits.
    fn last_claimed_before(&self, instant: i64) -> Result<i64> {
        let mut at = self.connection.prepare_cached(
            "SELECT id, claimed_at FROM claims WHERE id > ?1 ORDER BY id LIMIT 1",
        )?;
        let (mut low, mut high) = (0, load::last(&self.connection)?);
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

    fn epoch(&self) -> Result<Epoch, StoreError> {
        self.in_snapshot(|| {
            let sql = "SELECT value FROM meta WHERE name = 'epoch'";
            let epoch: i64 =
                self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            Ok(Epoch(u64::try_from(epoch).unwrap_or_default()))
        })
    }

    /// Runs some reads on one state of the file.
    fn in_snapshot<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T, StoreError> {
        let sqlite = |error| store_error(&self.shared.path, error);
        let execute = |sql: &str| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        execute("BEGIN").map_err(sqlite)?;
        let read = read();
        execute("ROLLBACK").map_err(sqlite)?;
        read.map_err(sqlite)
    }
}

/// A page as it fills.
struct Paging<'a> {
    query: &'a ListQuery,
    size: usize,
    page: Page,
    seen: u64,
}

impl<'a> Paging<'a> {
    fn new(query: &'a ListQuery) -> Self {
        let size = usize::try_from(query.page_size()).unwrap_or(usize::MAX);
        Self { query, size, page: Page::default(), seen: 0 }
    }

    const fn is_full(&self) -> bool {
        self.page.items.len() >= self.size
    }

    fn pass(&mut self, number: i64) {
        self.seen = u64::try_from(number).unwrap_or_default();
        self.page.examined += 1;
    }

    fn see(&mut self, number: i64, id: RecordId, record: &Record, clock: &StoreClock) {
        self.pass(number);
        let Some(seen) = rules::view(Some(record), clock.now()) else { return };
        let summary = Summary::new(id, seen);
        if self.query.takes(&summary) {
            self.page.items.push(summary);
        }
    }

    fn cut(mut self) -> Page {
        self.page.next = Some(Cursor(self.seen));
        self.page
    }

    fn end(self) -> Page {
        self.page
    }
}
