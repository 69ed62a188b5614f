//! The writer thread.
//!
//! It takes all commands that were queued during the last commit, executes them in one transaction,
//! commits once, and only then replies. There is no delay to collect more commands: the duration of
//! a commit collects enough.
//!
//! A commit with an unknown result poisons the writer (law 10): every command of the batch gets an
//! error with an unknown effect, and the writer reopens the file, syncs it and catches up before it
//! executes anything else. The state in memory survives that, because the writer only takes it as a
//! hint: it compares every index entry and every claim in flight with the file.

use std::{
    collections::VecDeque,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::{Connection, ErrorCode, config::DbConfig};
use semel_core::{StoreError, StoreErrorKind, StoreId};

use crate::{
    apply::BatchExecutor,
    clock::StoreClock,
    clock_guard::{self, save_time},
    command::SqliteReply,
    counters::CounterSweeper,
    error::{explain, store_error},
    fair_lock::{FairLock, LockBackoff},
    in_flight_cache::InFlightCache,
    index_loader::{self, OtherProcesses},
    open::{self, FileId, OpenMode, OpenedStore},
    open_files::{FileReplaced, OpenFiles},
    prune::Pruner,
    queue::PendingCommand,
    reply_batching::ReplyBatch,
    shared::{Outage, SqliteShared, StoreInfo},
    sweep::Sweeper,
    tables::RecordInserts,
    wal::{WriteAheadLog, sync_to_disk},
};

/// The maximum number of commands in one transaction.
const BATCH_MAX: usize = 512;

/// How long the writer waits for a command before it does idle maintenance.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct StoreWriter {
    shared: Arc<SqliteShared>,
    connection: Connection,
    pub(crate) clock: StoreClock,
    file_id: FileId,
    files: OpenFiles,
    fair_lock: FairLock,
    log: WriteAheadLog,
    other_processes: OtherProcesses,
    pruner: Pruner,
    sweeper: Sweeper,
    counter_sweeper: CounterSweeper,
    in_flight_cache: InFlightCache,
    /// The greatest number that is certainly committed, by this process or another.
    last_committed: i64,
    /// The greatest number that was issued to a claim, committed or not. This process issues no
    /// number twice, so that state which a rolled-back batch left in memory cannot match another
    /// record.
    last_issued: i64,
    /// Claims in flight up to this number are marked at the next checkpoint.
    settle_next: i64,
    /// What is removed from memory after the commit: `(hash, id)`. With a hash, the index entry is
    /// removed too.
    pending_removals: Vec<(Option<u64>, i64)>,
    /// What the batch has added to the index: removed again if it fails.
    inserted: Vec<(u64, i64)>,
    /// How many claims the batch has deleted.
    deleted: i64,
    reply_batch: ReplyBatch,
}

/// Why a batch failed.
#[derive(Debug)]
enum BatchFailure {
    /// After the commit: the file is not the one that was opened, and what was written may never be
    /// read.
    Replaced(FileReplaced),
    /// Before it began: the write lock was not available.
    NotBegun(rusqlite::Error),
    /// Before the commit: it was rolled back and had no effect.
    Undone(rusqlite::Error),
    /// In the commit or the rollback: the effect is unknown.
    Poisoned(rusqlite::Error),
}

impl StoreWriter {
    /// Opens the file, syncs its content, and loads the index.
    pub(crate) fn open(shared: Arc<SqliteShared>) -> Result<(Self, StoreInfo), StoreError> {
        let mut log = WriteAheadLog::new(shared.settings.checkpoint_pages);
        let (opened, files) = connect(&shared, &mut log, OpenMode::First)?;
        let (is_new, created_at) = (opened.is_new, opened.created_at);
        let OpenedStore { connection, clock, file_id, fence_floor, unused_for, .. } = opened;
        let fair_lock = FairLock::open(&shared.path).map_err(|error| {
            let path = shared.path.display();
            let message = format!("{path}-turn: the lock file cannot be opened: {error}");
            StoreError::new(StoreErrorKind::ReadOnly, message).because(error)
        })?;
        let mut sweeper = Sweeper::default();
        let sqlite = |error| store_error(&shared.path, error);
        let pruner = Pruner::new(&connection).map_err(sqlite)?;
        index_loader::load_all(&connection, &shared, &mut sweeper).map_err(sqlite)?;
        disable_busy_timeout(&connection).map_err(sqlite)?;
        clock_guard::warn_unused_for_long(&shared.path, unused_for, sweeper.longest());
        let last = shared.index.last();
        let created_at = Duration::from_millis(u64::try_from(created_at).unwrap_or_default());
        let info = StoreInfo {
            id: StoreId::from_bytes(file_id),
            created_at: SystemTime::UNIX_EPOCH + created_at,
            is_new,
            is_used: last > 0,
        };
        let writer = Self {
            shared,
            connection,
            clock,
            file_id,
            files,
            fair_lock,
            log,
            other_processes: OtherProcesses::default(),
            pruner,
            sweeper,
            counter_sweeper: CounterSweeper::default(),
            in_flight_cache: InFlightCache::default(),
            last_committed: last,
            last_issued: last.max(fence_floor),
            settle_next: last,
            pending_removals: Vec::new(),
            inserted: Vec::new(),
            deleted: 0,
            reply_batch: ReplyBatch::default(),
        };
        Ok((writer, info))
    }

    /// Serves the queue until it is closed.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(commands) = shared.writes.take(BATCH_MAX, IDLE_INTERVAL) {
            let healthy = if commands.is_empty() {
                self.reply_batch.flush_undelivered();
                self.idle_maintenance()
            } else {
                self.serve(commands) && self.after_batch()
            };
            if !healthy && !self.reopen() {
                return;
            }
        }
        self.shut_down();
    }

    /// Executes a batch and replies; `false` when the writer is poisoned.
    fn serve(&mut self, mut commands: VecDeque<PendingCommand>) -> bool {
        // Answers are stored by number: inserted in order, they fill the pages.
        commands.make_contiguous().sort_by_key(|pending| pending.command.completes());
        match self.batch(&commands) {
            Ok(replies) => {
                self.apply_to_memory();
                for (pending, reply) in commands.into_iter().zip(replies) {
                    pending.respond_in(&mut self.reply_batch, reply);
                }
                self.reply_batch.flush();
                true
            }
            Err(BatchFailure::Undone(_)) if commands.len() > 1 => self.serve_each(commands),
            Err(BatchFailure::NotBegun(error) | BatchFailure::Undone(error)) => {
                refuse(commands, |error| error, &self.shared.path, &error);
                true
            }
            Err(BatchFailure::Replaced(replaced)) => {
                self.suspend(commands, &replaced);
                false
            }
            Err(BatchFailure::Poisoned(error)) => {
                refuse(commands, StoreError::effect_unknown, &self.shared.path, &error);
                false
            }
        }
    }

    /// Refuses a committed batch and all later commands: the file is not the one that was opened.
    /// If only the log was removed, this connection still has it and writes it back to the
    /// database.
    fn suspend(&mut self, commands: VecDeque<PendingCommand>, replaced: &FileReplaced) {
        let outage = Outage::from(replaced);
        for pending in commands {
            pending.respond(Err(outage.error().effect_unknown()));
        }
        self.shared.suspend(outage);
        if replaced.leaves_database_intact() {
            let _ = self.log.checkpoint(&self.connection);
        }
    }

    /// Executes the commands one by one, so that one bad command does not fail the others.
    fn serve_each(&mut self, mut commands: VecDeque<PendingCommand>) -> bool {
        while let Some(pending) = commands.pop_front() {
            if !self.serve(VecDeque::from([pending])) {
                for untried in commands {
                    let message = "the store is being opened again after a failed write";
                    untried.respond(Err(StoreError::new(StoreErrorKind::Unavailable, message)));
                }
                return false;
            }
        }
        true
    }

    fn batch(
        &mut self,
        commands: &VecDeque<PendingCommand>,
    ) -> Result<Vec<SqliteReply>, BatchFailure> {
        self.pending_removals.clear();
        self.inserted.clear();
        self.deleted = 0;
        self.begin().map_err(BatchFailure::NotBegun)?;
        let decided = self.decide(commands);
        match decided {
            Ok(replies) => {
                self.execute("COMMIT").map_err(BatchFailure::Poisoned)?;
                // Only after the commit: a check before it could miss a later removal, and a commit
                // to a removed file does no harm.
                self.files.check().map_err(BatchFailure::Replaced)?;
                Ok(replies)
            }
            Err(error) => {
                self.undo().map_err(BatchFailure::Poisoned)?;
                Err(BatchFailure::Undone(error))
            }
        }
    }

    fn decide(
        &mut self,
        commands: &VecDeque<PendingCommand>,
    ) -> rusqlite::Result<Vec<SqliteReply>> {
        self.catch_up()?;
        if self.in_flight_cache.clear_if_changed(&self.connection)? {
            self.follow_clock()?;
        }
        // One instant for the whole batch, read under the write lock.
        let now = self.clock.now();
        if self.log.take_checkpointed() {
            save_time(&self.connection, &self.clock)?;
            self.mark_long_runners()?;
        }
        let mut batch = self.batch_executor()?;
        let replies = commands.iter().map(|pending| batch.apply(&pending.command, now)).collect();
        drop(batch);
        if self.deleted > 0 {
            let count = "UPDATE meta SET value = value + ?1 WHERE name = 'deleted'";
            self.connection.prepare_cached(count)?.execute([self.deleted])?;
        }
        replies
    }

    fn batch_executor(&mut self) -> rusqlite::Result<BatchExecutor<'_>> {
        Ok(BatchExecutor {
            inserts: RecordInserts::new(&self.connection)?,
            connection: &self.connection,
            shared: &self.shared,
            clock: &self.clock,
            sweeper: &mut self.sweeper,
            counter_sweeper: &mut self.counter_sweeper,
            in_flight_cache: &mut self.in_flight_cache,
            last_issued: &mut self.last_issued,
            pending_removals: &mut self.pending_removals,
            inserted: &mut self.inserted,
            deleted: &mut self.deleted,
        })
    }

    /// Takes the write lock, fairly among processes.
    fn begin(&self) -> rusqlite::Result<()> {
        // A lock file that cannot be locked costs fairness, not safety.
        if !self.fair_lock.lock().unwrap_or(true) {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
        let mut backoff = LockBackoff::default();
        let begun = loop {
            match self.execute("BEGIN IMMEDIATE") {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    if !backoff.sleep() {
                        break Err(error);
                    }
                }
                begun => break begun,
            }
        };
        let _ = self.fair_lock.unlock();
        begun
    }

    /// Rolls back. Another process may issue the numbers of the batch next, so catching up
    /// continues from the greatest number that is certainly committed. (Reading the greatest number
    /// from the file would skip what another process commits just before that.)
    fn undo(&mut self) -> rusqlite::Result<()> {
        self.discard_batch();
        if self.connection.is_autocommit() { Ok(()) } else { self.execute("ROLLBACK") }
    }

    fn discard_batch(&mut self) {
        self.pending_removals.clear();
        self.in_flight_cache.clear();
        self.sweeper.restart();
        for (hash, id) in self.inserted.drain(..) {
            self.shared.index.remove(hash, id);
        }
        // If the batch was committed after all, catching up restores what is above
        // `last_committed`.
        let _ = self.shared.in_flight().split_off(&self.last_committed.saturating_add(1));
        self.shared.index.set_last(self.last_committed);
    }

    /// Removes from memory what the committed batch has ended or deleted.
    fn apply_to_memory(&mut self) {
        self.last_committed = self.shared.index.last();
        self.inserted.clear();
        self.pruner.add_own_deletions(self.deleted);
        let mut in_flight = self.shared.in_flight();
        for (hash, id) in self.pending_removals.drain(..) {
            in_flight.remove(&id);
            if let Some(hash) = hash {
                self.shared.index.remove(hash, id);
            }
        }
    }

    /// Work between two batches; `false` when the file must be reopened.
    fn after_batch(&mut self) -> bool {
        if self.pruner.step(&self.connection, &self.shared.index).is_err() {
            return false;
        }
        // A batch that was undone has not checked the files.
        !self.log.is_due() || (self.check_files() && self.log.checkpoint(&self.connection).is_ok())
    }

    /// Whether the files are those that were opened. If not, the store is suspended.
    fn check_files(&mut self) -> bool {
        let checked = self.files.check();
        if let Err(replaced) = &checked {
            self.suspend(VecDeque::new(), replaced);
        }
        checked.is_ok()
    }

    /// Catches up with other processes while the writer is idle, so that the next batch has less to
    /// read. A failure is retried in that batch. Returns `false` when the file is not the one that
    /// was opened.
    fn idle_maintenance(&mut self) -> bool {
        if !self.check_files() {
            return false;
        }
        let _ = self.catch_up();
        let _ = self.pruner.check(&self.connection, &self.shared.index);
        let _ = self.pruner.step(&self.connection, &self.shared.index);
        true
    }

    /// Reads the claims of other processes, whose clocks may be ahead.
    fn catch_up(&mut self) -> rusqlite::Result<()> {
        let (connection, shared) = (&self.connection, &self.shared);
        let latest = index_loader::load_new_claims(
            connection,
            shared,
            &mut self.sweeper,
            &mut self.other_processes,
        )?;
        self.last_committed = shared.index.last();
        clock_guard::warn_clock_ahead(&shared.path, self.clock.raise_to(latest));
        Ok(())
    }

    /// Compares the clock with the one in the file, which another process may have anchored again.
    fn follow_clock(&self) -> rusqlite::Result<()> {
        clock_guard::follow(&self.connection, &self.shared.path, &self.clock)
    }

    /// Marks the claims that have been in flight for long, so that opening the file stays fast.
    /// Recent claims wait for the next checkpoint: nearly all will have ended by then.
    fn mark_long_runners(&mut self) -> rusqlite::Result<()> {
        for number in index_loader::mark_settled(&self.connection, &self.shared, self.settle_next)?
        {
            self.in_flight_cache.remove(number);
        }
        self.settle_next = self.last_committed;
        Ok(())
    }

    /// Reopens the file after a failed write or a replacement, and retries until it succeeds.
    /// Commands fail without effect meanwhile. Returns `false` when the store is closed.
    fn reopen(&mut self) -> bool {
        self.discard_batch();
        // The old connection must be closed before the new one is opened, and must not delete the
        // log: a new log would count as a replaced file.
        let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if let Ok(nothing) = Connection::open_in_memory() {
            self.connection = nothing;
        }
        let mut backoff = Duration::from_millis(10);
        loop {
            let Err(error) = self.reconnect() else { return true };
            let Some(commands) = self.shared.writes.take(usize::MAX, backoff) else { return false };
            for pending in commands {
                let message = format!("the store cannot be opened again: {error}");
                pending.respond(Err(StoreError::new(error.kind(), message)));
            }
            thread::sleep(backoff);
            backoff = (backoff * 2).min(Duration::from_secs(1));
        }
    }

    fn reconnect(&mut self) -> Result<(), StoreError> {
        self.files.check_inodes()?;
        let mode = OpenMode::Reopen(self.file_id);
        let (opened, files) = connect(&self.shared, &mut self.log, mode)?;
        let path = &self.shared.path;
        let sqlite = |error| store_error(path, error);
        let last = index_loader::last_number(&opened.connection).map_err(sqlite)?;
        if last < self.last_committed {
            let message = format!(
                "{}: the file lacks claims that were acknowledged: an older copy is in its place",
                path.display()
            );
            return Err(StoreError::new(StoreErrorKind::Corrupt, message));
        }
        disable_busy_timeout(&opened.connection).map_err(sqlite)?;
        self.connection = opened.connection;
        // The readers share this clock.
        self.clock.raise_offset(opened.clock.offset());
        self.files = files;
        self.shared.resume();
        Ok(())
    }

    /// Stores the time and writes the log back. The next opening makes up for a failure.
    fn shut_down(mut self) {
        if self.begin().is_ok() {
            let noted = save_time(&self.connection, &self.clock);
            let _ = self.execute(if noted.is_ok() { "COMMIT" } else { "ROLLBACK" });
        }
        let _ = self.log.checkpoint(&self.connection);
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }
}

/// Opens the write connection and syncs the file.
fn connect(
    shared: &SqliteShared,
    log: &mut WriteAheadLog,
    mode: OpenMode,
) -> Result<(OpenedStore, OpenFiles), StoreError> {
    let path = &shared.path;
    let mut opened = open::writer(path, &shared.settings, mode)?;
    log.attach(&mut opened.connection).map_err(|error| store_error(path, error))?;
    sync_to_disk(&opened.connection, path)?;
    let files = OpenFiles::at(path).map_err(|error| {
        let message = format!("{}: the file cannot be reached: {error}", path.display());
        StoreError::new(StoreErrorKind::Unavailable, message).because(error)
    })?;
    Ok((opened, files))
}

/// From here on the writer waits for other processes by the fair lock, not inside SQLite.
fn disable_busy_timeout(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)
}

/// Fails every command of a batch with this error.
fn refuse(
    commands: VecDeque<PendingCommand>,
    effect: impl Fn(StoreError) -> StoreError,
    path: &Path,
    error: &rusqlite::Error,
) {
    let (kind, advice) = explain(error);
    let message = format!("{}: {advice} ({error})", path.display());
    for pending in commands {
        pending.respond(Err(effect(StoreError::new(kind, message.clone()))));
    }
}

#[cfg(test)]
mod tests;
