//! Executes each command inside the writer's transaction: finds the record, applies
//! [`semel_core::rules`], and writes the change.

use rusqlite::{Connection, Result};
use semel_core::{
    Batch, Claim, Claimant, Fence, Fenced, Finish, Record, RecordId, Resolution, Resolved, State,
    StoreTime,
    rules::{self, Change},
    settlement::{LimitWork, limited},
    time::millis,
};

use crate::{
    clock::StoreClock,
    clock_guard::save_time,
    command::{SqliteCommand, SqliteReply},
    counters::{self, CounterSweeper},
    error::damaged,
    in_flight_cache::InFlightCache,
    shared::{NEVER, SqliteShared},
    sweep::Sweeper,
    tables::{self, LoadResult, RecordInserts, StoredRecord, signed},
};

/// The most records that one reap or sweep changes, whatever its limit is.
const MAINTENANCE_BATCH_MAX: u32 = 10_000;

/// Executes the commands of one batch.
pub(crate) struct BatchExecutor<'w> {
    pub(crate) connection: &'w Connection,
    pub(crate) inserts: RecordInserts<'w>,
    pub(crate) shared: &'w SqliteShared,
    pub(crate) clock: &'w StoreClock,
    pub(crate) sweeper: &'w mut Sweeper,
    pub(crate) counter_sweeper: &'w mut CounterSweeper,
    pub(crate) in_flight_cache: &'w mut InFlightCache,
    pub(crate) last_issued: &'w mut i64,
    pub(crate) pending_removals: &'w mut Vec<(Option<u64>, i64)>,
    pub(crate) inserted: &'w mut Vec<(u64, i64)>,
    pub(crate) deleted: &'w mut i64,
}

impl BatchExecutor<'_> {
    pub(crate) fn apply(&mut self, command: &SqliteCommand, now: StoreTime) -> Result<SqliteReply> {
        match command {
            SqliteCommand::Claim(claim, hash) => self.claim(claim, *hash, now),
            SqliteCommand::Renew(id, by, lease) => {
                self.fenced(id, *by, None, now, |found| rules::renew(found, *by, *lease, now))
            }
            SqliteCommand::Finish(id, by, finish) => {
                let rule = |found: Option<&Record>| rules::finish(found, *by, finish, now);
                self.fenced(id, *by, Some(finish), now, rule)
            }
            SqliteCommand::Resolve(id, seen, resolution) => {
                self.resolve(id, *seen, resolution, now)
            }
            SqliteCommand::Reap(limit) => self.reap(*limit, now),
            SqliteCommand::Sweep(limit) => self.sweep(*limit, now),
            SqliteCommand::SetMetadata(name, value) => {
                tables::set_metadata(self.connection, name, value.as_deref())?;
                Ok(SqliteReply::Done)
            }
            SqliteCommand::CatchUp => Ok(SqliteReply::Done),
            SqliteCommand::Get(_)
            | SqliteCommand::List(_)
            | SqliteCommand::Epoch
            | SqliteCommand::Usage
            | SqliteCommand::Metadata(_) => Err(damaged("a command for a reader")),
        }
    }

    fn claim(&mut self, claim: &Claim, hash: u64, now: StoreTime) -> Result<SqliteReply> {
        let mut found = None;
        for number in self.shared.index.candidates(hash).iter() {
            match tables::load(self.connection, number, &claim.id)? {
                LoadResult::Found(stored) => {
                    found = Some(stored);
                    break;
                }
                // A number above the last may be issued in this very batch.
                LoadResult::Gone if number > self.shared.index.last() => {}
                LoadResult::Gone => self.pending_removals.push((Some(hash), number)),
                LoadResult::Other => {}
            }
        }
        let record = record_of(found.as_ref());
        let mut decided = rules::claim(record, claim, self.next_fence()?, now);
        if let Some(work) = LimitWork::of_claim(record, &decided, claim) {
            decided = limited(decided, counters::apply(self.connection, &work, now)?);
        }
        let (claimed, change) = decided;
        self.write(&claim.id, Some(hash), found.as_ref(), change)?;
        Ok(SqliteReply::Claimed(claimed))
    }

    /// A write that names its fence finds its row by that number: a row that has been superseded is
    /// deleted in the same transaction that supersedes it, so a row that is there is current.
    fn fenced(
        &mut self,
        id: &RecordId,
        by: Claimant,
        finish: Option<&Finish>,
        now: StoreTime,
        rule: impl FnOnce(Option<&Record>) -> (Fenced, Change),
    ) -> Result<SqliteReply> {
        let found = self.find(id, by.fence)?;
        let (fenced, change) = rule(record_of(found.as_ref()));
        self.settle(id, found.as_ref(), &change, finish, now)?;
        self.write(id, None, found.as_ref(), change)?;
        Ok(SqliteReply::Fenced(fenced))
    }

    fn resolve(
        &mut self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
        now: StoreTime,
    ) -> Result<SqliteReply> {
        let found = self.find(id, seen)?;
        let next = self.next_fence()?;
        let (resolved, change) =
            rules::resolve(record_of(found.as_ref()), seen, resolution, next, now);
        self.settle(id, found.as_ref(), &change, None, now)?;
        self.write(id, None, found.as_ref(), change)?;
        if resolved == Resolved::Applied {
            let raise = "UPDATE meta SET value = value + 1 WHERE name = 'epoch'";
            self.connection.prepare_cached(raise)?.execute([])?;
            save_time(self.connection, self.clock)?;
        }
        Ok(SqliteReply::Resolved(resolved))
    }

    fn reap(&mut self, limit: u32, now: StoreTime) -> Result<SqliteReply> {
        let limit = usize::try_from(limit.min(MAINTENANCE_BATCH_MAX)).unwrap_or(usize::MAX);
        let (mut done, more_holds) = self.end_old_holds(limit, now)?;
        let limit = limit.saturating_sub(usize::try_from(done).unwrap_or(usize::MAX));
        let mut suspects: Vec<i64> = self
            .shared
            .in_flight()
            .iter()
            .filter(|(_, lease_until)| **lease_until < now)
            .map(|(number, _)| *number)
            .take(limit.saturating_add(1))
            .collect();
        let more = suspects.len() > limit;
        suspects.truncate(limit);
        for number in suspects {
            let Some((id, stored)) = tables::load_any(self.connection, number)? else {
                self.pending_removals.push((None, number));
                continue;
            };
            let State::InFlight { lease_until } = stored.record.state else {
                self.pending_removals.push((None, number));
                continue;
            };
            let change = rules::reap(&stored.record, now);
            if change == Change::Keep {
                // Renewed by another process, or lapsed and left to the next request.
                let look_again = if now > lease_until { NEVER } else { lease_until };
                self.shared.in_flight().insert(number, look_again);
                continue;
            }
            done += 1;
            self.settle(&id, Some(&stored), &change, None, now)?;
            self.write(&id, None, Some(&stored), change)?;
        }
        Ok(SqliteReply::Batch(Batch::new(done, more || more_holds)))
    }

    /// Ends records that were held for longer than their route allows. Returns how many, and
    /// whether there are more.
    fn end_old_holds(&mut self, limit: usize, now: StoreTime) -> Result<(u32, bool)> {
        let held = tables::held_too_long(
            self.connection,
            signed(now.as_millis()),
            limit.saturating_add(1),
        )?;
        let mut done = 0;
        for number in held.iter().take(limit) {
            let Some((id, stored)) = tables::load_any(self.connection, *number)? else { continue };
            let change = rules::reap(&stored.record, now);
            done += u32::from(change != Change::Keep);
            self.settle(&id, Some(&stored), &change, None, now)?;
            self.write(&id, None, Some(&stored), change)?;
        }
        Ok((done, held.len() > limit))
    }

    fn sweep(&mut self, limit: u32, now: StoreTime) -> Result<SqliteReply> {
        let index = &self.shared.index;
        let swept =
            self.sweeper.sweep(self.connection, index, limit.min(MAINTENANCE_BATCH_MAX), now)?;
        *self.deleted += swept.deleted;
        self.pending_removals.extend(swept.pending_removals);
        let Batch { done, more, .. } = swept.batch;
        let more_counters = self.counter_sweeper.step(self.connection, now)?;
        Ok(SqliteReply::Batch(Batch::new(done, more || more_counters)))
    }

    // === helpers ===

    /// Settles the reservations of a record that is about to change.
    fn settle(
        &self,
        id: &RecordId,
        found: Option<&StoredRecord>,
        change: &Change,
        finish: Option<&Finish>,
        now: StoreTime,
    ) -> Result<()> {
        match LimitWork::of_change(id, record_of(found), change, finish) {
            // It has no limits that could refuse.
            Some(work) => counters::apply(self.connection, &work, now).map(drop),
            None => Ok(()),
        }
    }

    fn find(&self, id: &RecordId, fence: Fence) -> Result<Option<StoredRecord>> {
        let number = signed(fence.get());
        if let Some((cached_id, record)) = self.in_flight_cache.get(number)
            && cached_id == id
        {
            return Ok(Some(StoredRecord { record: record.clone(), marked: false }));
        }
        match tables::load(self.connection, number, id)? {
            LoadResult::Found(stored) => Ok(Some(stored)),
            LoadResult::Gone | LoadResult::Other => Ok(None),
        }
    }

    fn next_fence(&self) -> Result<Fence> {
        let last = self.shared.index.last().max(*self.last_issued);
        let next = last.checked_add(1).and_then(|next| u64::try_from(next).ok());
        next.and_then(Fence::new).ok_or_else(|| damaged("the last number"))
    }

    /// Applies a change to the tables and to memory. Additions to memory are reverted if the batch
    /// fails; removals wait for the commit.
    fn write(
        &mut self,
        id: &RecordId,
        hash: Option<u64>,
        found: Option<&StoredRecord>,
        change: Change,
    ) -> Result<()> {
        match change {
            Change::Keep => Ok(()),
            Change::Put(record) => self.put(id, hash, found, record),
            Change::Delete => {
                let Some(found) = found else { return Ok(()) };
                let number = signed(found.record.fence.get());
                self.in_flight_cache.remove(number);
                self.pending_removals.push((None, number));
                tables::mark_deleted(self.connection, number)
            }
        }
    }

    fn put(
        &mut self,
        id: &RecordId,
        hash: Option<u64>,
        found: Option<&StoredRecord>,
        record: Record,
    ) -> Result<()> {
        let number = signed(record.fence.get());
        tables::put(&mut self.inserts, id, found, &record)?;
        let old = found.map(|found| signed(found.record.fence.get()));
        if old != Some(number) {
            let hash = hash.unwrap_or_else(|| self.shared.index.hash_of(id));
            self.shared.index.insert(hash, number);
            self.inserted.push((hash, number));
            self.shared.index.set_last(number);
            *self.last_issued = number;
            self.sweeper.add_retention(signed(millis(record.retention)));
            if let Some(old) = old {
                *self.deleted += 1;
                self.in_flight_cache.remove(old);
                self.pending_removals.push((Some(hash), old));
            }
        }
        if let State::InFlight { lease_until } = record.state {
            self.shared.in_flight().insert(number, lease_until);
            // A marked record is not cached: its mark is in the file only.
            if found.is_none_or(|found| !found.marked) {
                self.in_flight_cache.insert(number, id, record);
            }
        } else {
            self.in_flight_cache.remove(number);
            self.pending_removals.push((None, number));
        }
        Ok(())
    }
}

fn record_of(found: Option<&StoredRecord>) -> Option<&Record> {
    found.map(|found| &found.record)
}
