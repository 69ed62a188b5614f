//! The reader threads, each with its own connection.
//!
//! They run short reads and keep no transaction open, so that checkpoints are not blocked. No claim
//! is decided on their results.

use std::sync::Arc;

use rusqlite::{Connection, Result, params};
use semel_core::{
    Cursor, Epoch, ListQuery, Page, Record, RecordId, Snapshot, StateName, StoreError,
    StoreErrorKind, Summary, Usage, rules, time::millis,
};

use crate::{
    clock::StoreClock,
    command::{SqliteCommand, SqliteReply},
    error::store_error,
    file_system, index_loader, open,
    queue::PendingCommand,
    shared::SqliteShared,
    tables::{self, FROM_ID, HELD, LoadResult, RELEASED, signed},
};

/// How many rows one page of a listing examines.
const ROWS_EXAMINED_MAX: usize = 5000;

#[derive(Debug)]
pub(crate) struct StoreReader {
    shared: Arc<SqliteShared>,
    connection: Connection,
    clock: StoreClock,
    /// The [`SqliteShared::reopen_count`] that the connection belongs to.
    opening: u64,
}

/// The result of one lookup in the file.
#[expect(clippy::large_enum_variant, reason = "short-lived; a box would allocate each time")]
enum LookupResult {
    Found(Option<Record>),
    /// Other processes have made claims that are not in the index.
    Foreign,
    /// The writer of this process has committed meanwhile.
    Outdated,
}

impl StoreReader {
    pub(crate) const fn new(
        shared: Arc<SqliteShared>,
        connection: Connection,
        clock: StoreClock,
    ) -> Self {
        Self { shared, connection, clock, opening: 0 }
    }

    /// Serves the queue until it is closed.
    pub(crate) fn run(mut self) {
        let idle = std::time::Duration::from_secs(1);
        while let Some(commands) = self.shared.reads.take(1, idle) {
            for pending in commands {
                match self.follow_writer() {
                    Ok(()) => self.serve(pending),
                    Err(error) => pending.respond(Err(error)),
                }
            }
        }
    }

    /// Refuses to read while the file is not the one that was opened, and reopens it after the
    /// writer has.
    fn follow_writer(&mut self) -> Result<(), StoreError> {
        let opening = self.shared.reopen_count();
        if let Some(outage) = self.shared.outage() {
            return Err(outage.error());
        }
        if opening != self.opening {
            // The new connection is opened first: SQLite deletes the log with the last connection.
            self.connection = open::reader(&self.shared.path)?;
            self.opening = opening;
        }
        Ok(())
    }

    fn serve(&self, pending: PendingCommand) {
        let reply = match &pending.command {
            SqliteCommand::Get(id) => self.get(id).map(|seen| SqliteReply::Got(seen.map(Box::new))),
            SqliteCommand::List(query) => self.list(query).map(SqliteReply::Page),
            SqliteCommand::Epoch => self.epoch().map(SqliteReply::Epoch),
            SqliteCommand::Usage => self.usage().map(SqliteReply::Usage),
            SqliteCommand::Metadata(prefix) => {
                let found = self.in_snapshot(|| tables::metadata(&self.connection, prefix));
                found.map(SqliteReply::Metadata)
            }
            SqliteCommand::Claim(..)
            | SqliteCommand::Renew(..)
            | SqliteCommand::Finish(..)
            | SqliteCommand::Resolve(..)
            | SqliteCommand::Reap(_)
            | SqliteCommand::Sweep(_)
            | SqliteCommand::SetMetadata(..)
            | SqliteCommand::CatchUp => {
                Err(StoreError::new(StoreErrorKind::Unavailable, "a reader cannot write"))
            }
        };
        pending.respond(reply);
    }

    fn get(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let mut caught_up = false;
        for _ in 0..4 {
            match self.in_snapshot(|| self.lookup(id, caught_up))? {
                LookupResult::Found(record) => {
                    return Ok(rules::view(record.as_ref(), self.clock.now()));
                }
                LookupResult::Foreign => {
                    self.catch_up()?;
                    caught_up = true;
                }
                LookupResult::Outdated => {}
            }
        }
        // A claim that is not committed yet is absent.
        Ok(None)
    }

    /// Once the writer has caught up, the index has everything from before the request; only a
    /// later takeover may be missed.
    fn lookup(&self, id: &RecordId, caught_up: bool) -> Result<LookupResult> {
        let last = index_loader::last_number(&self.connection)?;
        let foreign = last > self.shared.index.last();
        if foreign && !caught_up {
            return Ok(LookupResult::Foreign);
        }
        let (mut invisible, mut gone) = (false, false);
        for number in self.shared.index.candidates(self.shared.index.hash_of(id)).iter() {
            match tables::load(&self.connection, number, id)? {
                LoadResult::Found(stored) => return Ok(LookupResult::Found(Some(stored.record))),
                // Committed after this snapshot was taken: its predecessor may be gone from the
                // index.
                LoadResult::Gone if number > last => invisible = true,
                LoadResult::Gone => gone = true,
                LoadResult::Other => {}
            }
        }
        Ok(match (invisible, foreign && gone) {
            (_, true) => LookupResult::Foreign,
            (true, false) => LookupResult::Outdated,
            (false, false) => LookupResult::Found(None),
        })
    }

    fn catch_up(&self) -> Result<(), StoreError> {
        let answer = self.shared.writes.push(SqliteCommand::CatchUp)?.blocking_recv();
        let gone = |_| StoreError::new(StoreErrorKind::Unavailable, "the writer has stopped");
        answer.map_err(gone)?.map(drop)
    }

    fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        self.catch_up()?;
        self.in_snapshot(|| {
            let after = query.after.map_or(0, |cursor| i64::try_from(cursor.0).unwrap_or(i64::MAX));
            if let Some(key) = &query.key {
                let numbers = self.shared.index.with_key(key.as_str(), after, ROWS_EXAMINED_MAX);
                return self.list_numbers(query, &numbers);
            }
            match query.state {
                _ if query.lapsed => self.list_open(query, after),
                Some(StateName::InFlight | StateName::Held) => self.list_open(query, after),
                Some(StateName::Released) => {
                    let numbers = self.numbers_in(RELEASED, after, ROWS_EXAMINED_MAX)?;
                    self.list_numbers(query, &numbers)
                }
                Some(StateName::Completed) | None => self.list_all(query, after),
            }
        })
    }

    /// Lists records that are in flight or held: they are few, and found without a scan.
    fn list_open(&self, query: &ListQuery, after: i64) -> Result<Page> {
        let from = after.saturating_add(1);
        let mut numbers: Vec<i64> = self
            .shared
            .in_flight()
            .range(from..)
            .take(ROWS_EXAMINED_MAX)
            .map(|(n, _)| *n)
            .collect();
        let held = self.numbers_in(HELD, after, ROWS_EXAMINED_MAX)?;
        numbers.extend(held);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.truncate(ROWS_EXAMINED_MAX);
        self.list_numbers(query, &numbers)
    }

    fn numbers_in(&self, state: i64, after: i64, limit: usize) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM states WHERE state = ?1 AND id > ?2 ORDER BY id LIMIT ?3";
        let mut statement = self.connection.prepare_cached(sql)?;
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        statement.query_map([state, after, limit], |row| row.get(0))?.collect()
    }

    fn list_numbers(&self, query: &ListQuery, numbers: &[i64]) -> Result<Page> {
        self.fill(PageBuilder::new(query), numbers, ROWS_EXAMINED_MAX)
    }

    /// Adds the records with these numbers to a page. There may be more if there are as many as
    /// were requested.
    fn fill(&self, mut page: PageBuilder<'_>, numbers: &[i64], requested: usize) -> Result<Page> {
        for number in numbers {
            if page.is_full() {
                return Ok(page.finish_with_cursor());
            }
            match tables::load_any(&self.connection, *number)? {
                Some((id, stored)) => page.add(*number, id, &stored.record, &self.clock),
                None => page.skip(*number),
            }
        }
        Ok(if numbers.len() >= requested { page.finish_with_cursor() } else { page.finish() })
    }

    /// Lists all records in the range of ages; after that range only those that an operator's act
    /// has moved there.
    fn list_all(&self, query: &ListQuery, after: i64) -> Result<Page> {
        let now = self.clock.now().as_millis();
        let oldest = query.age_max.map_or(0, |age| signed(now.saturating_sub(millis(age))));
        let newest = signed(now.saturating_sub(millis(query.age_min)));
        let last = index_loader::last_number(&self.connection)?;
        let after = after.max(tables::last_before(&self.connection, oldest, last)?);
        let mut statement = self.connection.prepare_cached(FROM_ID)?;
        let limit = i64::try_from(ROWS_EXAMINED_MAX).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![after, limit])?;
        let mut page = PageBuilder::new(query);
        let mut examined = 0;
        while let Some(row) = rows.next()? {
            if page.is_full() {
                return Ok(page.finish_with_cursor());
            }
            examined += 1;
            let number = row.get(0)?;
            if row.get::<_, i64>(2)? > newest && !tables::is_resolved(&self.connection, number)? {
                let rest = ROWS_EXAMINED_MAX - examined + 1;
                let numbers = tables::resolved_after(&self.connection, number, rest)?;
                page.skip(number);
                return self.fill(page, &numbers, rest);
            }
            match tables::read(row)? {
                Some(stored) => {
                    page.add(number, tables::read_id(row)?, &stored.record, &self.clock);
                }
                None => page.skip(number),
            }
        }
        Ok(if examined >= ROWS_EXAMINED_MAX { page.finish_with_cursor() } else { page.finish() })
    }

    fn epoch(&self) -> Result<Epoch, StoreError> {
        self.in_snapshot(|| {
            let sql = "SELECT value FROM meta WHERE name = 'epoch'";
            let epoch: i64 =
                self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            Ok(Epoch(u64::try_from(epoch).unwrap_or_default()))
        })
    }

    /// Freed pages do not count: new records reuse them.
    fn usage(&self) -> Result<Usage, StoreError> {
        let mut usage = Usage::default();
        usage.records = u64::try_from(self.shared.index.len()).ok();
        usage.bytes = self.in_snapshot(|| {
            let pragma = |sql| self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0));
            let pages: i64 = pragma("PRAGMA page_count")?;
            let free: i64 = pragma("PRAGMA freelist_count")?;
            let page_bytes: i64 = pragma("PRAGMA page_size")?;
            Ok(u64::try_from(pages.saturating_sub(free).saturating_mul(page_bytes)).ok())
        })?;
        usage.disk = file_system::space(&self.shared.path);
        Ok(usage)
    }

    /// Runs reads in one snapshot of the file.
    fn in_snapshot<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T, StoreError> {
        let sqlite = |error| store_error(&self.shared.path, error);
        let execute = |sql: &str| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        execute("BEGIN").map_err(sqlite)?;
        let read = read();
        execute("ROLLBACK").map_err(sqlite)?;
        read.map_err(sqlite)
    }
}

/// Builds a page of a listing.
struct PageBuilder<'a> {
    query: &'a ListQuery,
    size: usize,
    page: Page,
    last_number: u64,
}

impl<'a> PageBuilder<'a> {
    fn new(query: &'a ListQuery) -> Self {
        let size = usize::try_from(query.page_size()).unwrap_or(usize::MAX);
        Self { query, size, page: Page::default(), last_number: 0 }
    }

    const fn is_full(&self) -> bool {
        self.page.items.len() >= self.size
    }

    fn skip(&mut self, number: i64) {
        self.last_number = u64::try_from(number).unwrap_or_default();
        self.page.examined += 1;
    }

    fn add(&mut self, number: i64, id: RecordId, record: &Record, clock: &StoreClock) {
        self.skip(number);
        let Some(seen) = rules::view(Some(record), clock.now()) else { return };
        let summary = Summary::new(id, seen);
        if self.query.takes(&summary) {
            self.page.items.push(summary);
        }
    }

    fn finish_with_cursor(mut self) -> Page {
        self.page.next = Some(Cursor(self.last_number));
        self.page
    }

    fn finish(self) -> Page {
        self.page
    }
}
