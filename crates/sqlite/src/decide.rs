//! What each question does inside the writer's transaction: find the record, ask
//! [`semel_core::rules`], write what they say.

use rusqlite::Result;
use semel_core::{
    Batch, Claim, Claimant, Fence, Fenced, Record, RecordId, Resolution, Resolved, State,
    StoreTime,
    rules::{self, Change},
    time::millis,
};

use crate::{
    error::damaged,
    queue::{Ask, Told},
    shared::NEVER,
    tables::{self, Loaded, Stored, signed},
    writer::Writer,
};

/// How many records one batch of upkeep changes, whatever is asked.
const UPKEEP_MAX: u32 = 10_000;

impl Writer {
    pub(crate) fn apply(&mut self, ask: &Ask, now: StoreTime) -> Result<Told> {
        match ask {
            Ask::Claim(claim, hash) => self.claim(claim, *hash, now),
            Ask::Renew(id, by, lease) => {
                self.fenced(id, *by, |found| rules::renew(found, *by, *lease, now))
            }
            Ask::Finish(id, by, finish) => {
                self.fenced(id, *by, |found| rules::finish(found, *by, finish, now))
            }
            Ask::Resolve(id, seen, resolution) => self.resolve(id, *seen, resolution, now),
            Ask::Reap(limit) => self.reap(*limit, now),
            Ask::Sweep(limit) => self.sweep(*limit, now),
            Ask::SetMetadata(name, value) => {
                tables::set_metadata(&self.connection, name, value.as_deref())?;
                Ok(Told::Done)
            }
            Ask::CatchUp => Ok(Told::Done),
            Ask::Get(_) | Ask::List(_) | Ask::Epoch | Ask::Metadata(_) => {
                Err(damaged("a question for a reader"))
            }
        }
    }

    fn claim(&mut self, claim: &Claim, hash: u64, now: StoreTime) -> Result<Told> {
        let mut found = None;
        for number in self.shared.index.candidates(hash).iter() {
            match tables::load(&self.connection, number, &claim.id)? {
                Loaded::Found(stored) => {
                    found = Some(stored);
                    break;
                }
                // A number above the last may be issued in this very batch.
                Loaded::Gone if number > self.shared.index.last() => {}
                Loaded::Gone => self.leaving.push((Some(hash), number)),
                Loaded::Other => {}
            }
        }
        let (claimed, change) =
            rules::claim(record_of(found.as_ref()), claim, self.next_fence()?, now);
        self.write(&claim.id, Some(hash), found.as_ref(), change)?;
        Ok(Told::Claimed(claimed))
    }

    /// A write that names its fence finds its row by that number: a row that has been superseded is
    /// deleted in the same transaction that supersedes it, so a row that is there is current.
    fn fenced(
        &mut self,
        id: &RecordId,
        by: Claimant,
        rule: impl FnOnce(Option<&Record>) -> (Fenced, Change),
    ) -> Result<Told> {
        let found = self.find(id, by.fence)?;
        let (fenced, change) = rule(record_of(found.as_ref()));
        self.write(id, None, found.as_ref(), change)?;
        Ok(Told::Fenced(fenced))
    }

    fn resolve(
        &mut self,
        id: &RecordId,
        seen: Fence,
        resolution: &Resolution,
        now: StoreTime,
    ) -> Result<Told> {
        let found = self.find(id, seen)?;
        let next = self.next_fence()?;
        let (resolved, change) =
            rules::resolve(record_of(found.as_ref()), seen, resolution, next, now);
        self.write(id, None, found.as_ref(), change)?;
        if resolved == Resolved::Applied {
            let raise = "UPDATE meta SET value = value + 1 WHERE name = 'epoch'";
            self.connection.prepare_cached(raise)?.execute([])?;
            self.note_time()?;
        }
        Ok(Told::Resolved(resolved))
    }

    fn reap(&mut self, limit: u32, now: StoreTime) -> Result<Told> {
        let limit = usize::try_from(limit.min(UPKEEP_MAX)).unwrap_or(usize::MAX);
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
            let Some((id, stored)) = tables::load_any(&self.connection, number)? else {
                self.leaving.push((None, number));
                continue;
            };
            let State::InFlight { lease_until } = stored.record.state else {
                self.leaving.push((None, number));
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
            self.write(&id, None, Some(&stored), change)?;
        }
        Ok(Told::Batch(Batch { done, more: more || more_holds }))
    }

    /// Ends records that were held for longer than their route says. Gives how many, and whether
    /// there are more.
    fn end_old_holds(&mut self, limit: usize, now: StoreTime) -> Result<(u32, bool)> {
        let held = tables::held_too_long(
            &self.connection,
            signed(now.as_millis()),
            limit.saturating_add(1),
        )?;
        let mut done = 0;
        for number in held.iter().take(limit) {
            let Some((id, stored)) = tables::load_any(&self.connection, *number)? else { continue };
            let change = rules::reap(&stored.record, now);
            done += u32::from(change != Change::Keep);
            self.write(&id, None, Some(&stored), change)?;
        }
        Ok((done, held.len() > limit))
    }

    fn sweep(&mut self, limit: u32, now: StoreTime) -> Result<Told> {
        let index = &self.shared.index;
        let swept = self.sweeper.sweep(&self.connection, index, limit.min(UPKEEP_MAX), now)?;
        self.deleted += swept.deleted;
        self.leaving.extend(swept.leaving);
        Ok(Told::Batch(swept.batch))
    }

    // === parts ===

    fn find(&self, id: &RecordId, fence: Fence) -> Result<Option<Stored>> {
        let number = signed(fence.get());
        if let Some((running, record)) = self.running.get(number)
            && running == id
        {
            return Ok(Some(Stored { record: record.clone(), marked: false }));
        }
        match tables::load(&self.connection, number, id)? {
            Loaded::Found(stored) => Ok(Some(stored)),
            Loaded::Gone | Loaded::Other => Ok(None),
        }
    }

    fn next_fence(&self) -> Result<Fence> {
        let last = self.shared.index.last().max(self.given);
        let next = last.checked_add(1).and_then(|next| u64::try_from(next).ok());
        next.and_then(Fence::new).ok_or_else(|| damaged("the last number"))
    }

    /// Writes a change to the tables and to what is kept in memory. Additions to memory are taken
    /// back if the batch fails; removals wait until it is committed.
    fn write(
        &mut self,
        id: &RecordId,
        hash: Option<u64>,
        found: Option<&Stored>,
        change: Change,
    ) -> Result<()> {
        match change {
            Change::Keep => Ok(()),
            Change::Put(record) => self.put(id, hash, found, record),
            Change::Delete => {
                let Some(found) = found else { return Ok(()) };
                let number = signed(found.record.fence.get());
                self.running.remove(number);
                self.leaving.push((None, number));
                tables::mark_deleted(&self.connection, number)
            }
        }
    }

    fn put(
        &mut self,
        id: &RecordId,
        hash: Option<u64>,
        found: Option<&Stored>,
        record: Record,
    ) -> Result<()> {
        let number = signed(record.fence.get());
        tables::put(&self.connection, id, found, &record)?;
        let old = found.map(|found| signed(found.record.fence.get()));
        if old != Some(number) {
            let hash = hash.unwrap_or_else(|| self.shared.index.hash_of(id));
            self.shared.index.insert(hash, number);
            self.entered.push((hash, number));
            self.shared.index.set_last(number);
            self.given = number;
            self.sweeper.learn(signed(millis(record.retention)));
            if let Some(old) = old {
                self.deleted += 1;
                self.running.remove(old);
                self.leaving.push((Some(hash), old));
            }
        }
        if let State::InFlight { lease_until } = record.state {
            self.shared.in_flight().insert(number, lease_until);
            // A renewed record that is marked stays so; only the file knows that.
            if found.is_none_or(|found| !found.marked) {
                self.running.insert(number, id, record);
            }
        } else {
            self.running.remove(number);
            self.leaving.push((None, number));
        }
        Ok(())
    }
}

fn record_of(found: Option<&Stored>) -> Option<&Record> {
    found.map(|found| &found.record)
}
