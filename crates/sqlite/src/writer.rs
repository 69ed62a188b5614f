//! The one thread that writes.
//!
//! It takes whatever has queued up while the last batch was on its way to the disk, decides all of
//! it in one transaction, commits once, and only then answers. There is no delay to collect more:
//! the time of a commit collects enough.
//!
//! A commit whose result is unknown poisons the writer (law 10): everyone in the batch is told that
//! the effect is unknown, and the file is opened again, made durable, and caught up with before
//! anything else is decided. What is kept in memory survives that, because none of it is ever taken
//! for true: an index entry says *perhaps*, a claim in flight is a suspect.

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
    clock::StoreClock,
    clock_guard,
    desk::Outbox,
    error::{explain, store_error},
    load::{self, Neighbours},
    log::{Log, press_to_disk},
    open::{self, FileId, Opened, Opening},
    open_files::{OpenFiles, Replaced},
    prune::Pruner,
    queue::{Question, Told},
    running::Running,
    shared::{Outage, Shared},
    store::StoreInfo,
    sweep::Sweeper,
    tables::signed,
    turn::{Pause, Turn},
};

/// How many questions one transaction takes.
const BATCH_MAX: usize = 512;

/// How long the writer sleeps when nobody asks anything.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Connection,
    pub(crate) clock: StoreClock,
    file_id: FileId,
    files: OpenFiles,
    turn: Turn,
    log: Log,
    neighbours: Neighbours,
    pruner: Pruner,
    pub(crate) sweeper: Sweeper,
    pub(crate) running: Running,
    /// The greatest number that is committed for certain, our own or another process's.
    known: i64,
    /// The greatest number that was given to a claim, committed or not. None is given twice by this
    /// process, so that nothing in memory that an undone batch left behind can meet another record.
    pub(crate) given: i64,
    /// Up to which number claims in flight are marked at the next checkpoint.
    settle_next: i64,
    /// What is taken out of memory once the batch is committed: `(hash, id)`, the hash only where
    /// the index is meant too.
    pub(crate) leaving: Vec<(Option<u64>, i64)>,
    /// What the batch has put into the index: taken out again if it fails.
    pub(crate) entered: Vec<(u64, i64)>,
    /// How many claims the batch has deleted.
    pub(crate) deleted: i64,
    outbox: Outbox,
}

/// Why a batch failed.
#[derive(Debug)]
enum Failure {
    /// Before it began: the file is not the one that was opened.
    Replaced(Replaced),
    /// The same, after its commit: what it wrote may never be read.
    ReplacedMeanwhile(Replaced),
    /// Before it began: the file could not be had.
    NotBegun(rusqlite::Error),
    /// Before its commit: it was rolled back, nothing happened.
    Undone(rusqlite::Error),
    /// In its commit, or in undoing it: nobody knows.
    Poisoned(rusqlite::Error),
}

impl Writer {
    /// Opens the file, makes durable what it holds, and reads its index.
    pub(crate) fn open(shared: Arc<Shared>) -> Result<(Self, StoreInfo), StoreError> {
        let mut log = Log::new(shared.settings.checkpoint_pages);
        let (opened, files) = connect(&shared, &mut log, Opening::First)?;
        let Opened { connection, clock, file_id, fence_floor, unseen, is_new, created_at } = opened;
        let turn = Turn::open(&shared.path).map_err(|error| {
            let path = shared.path.display();
            let message = format!("{path}-turn: the lock file cannot be opened: {error}");
            StoreError::new(StoreErrorKind::ReadOnly, message).because(error)
        })?;
        let mut sweeper = Sweeper::default();
        let sqlite = |error| store_error(&shared.path, error);
        let pruner = Pruner::new(&connection).map_err(sqlite)?;
        load::everything(&connection, &shared, &mut sweeper).map_err(sqlite)?;
        take_turns(&connection).map_err(sqlite)?;
        clock_guard::tell_unseen(&shared.path, unseen, sweeper.longest());
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
            turn,
            log,
            neighbours: Neighbours::default(),
            pruner,
            sweeper,
            running: Running::default(),
            known: last,
            given: last.max(fence_floor),
            settle_next: last,
            leaving: Vec::new(),
            entered: Vec::new(),
            deleted: 0,
            outbox: Outbox::default(),
        };
        Ok((writer, info))
    }

    /// Serves the queue until it is closed.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(questions) = shared.writes.take(BATCH_MAX, IDLE) {
            let healthy = if questions.is_empty() {
                self.outbox.tidy();
                self.look_around()
            } else {
                self.serve(questions) && self.keep_up().is_ok()
            };
            if !healthy && !self.reopen() {
                return;
            }
        }
        self.leave();
    }

    /// Decides and answers a batch; `false` when the writer is poisoned.
    fn serve(&mut self, mut questions: VecDeque<Question>) -> bool {
        // Answers go into their table by number: in order they fill its pages.
        questions.make_contiguous().sort_by_key(|question| question.ask.completes());
        match self.batch(&questions) {
            Ok(told) => {
                self.settle_memory();
                for (question, told) in questions.into_iter().zip(told) {
                    question.answer_by(&mut self.outbox, told);
                }
                self.outbox.deliver();
                true
            }
            Err(Failure::Undone(_)) if questions.len() > 1 => self.serve_each(questions),
            Err(Failure::NotBegun(error) | Failure::Undone(error)) => {
                refuse(questions, |error| error, &self.shared.path, &error);
                true
            }
            Err(Failure::Replaced(replaced)) => {
                self.suspend(questions, |error| error, &replaced);
                false
            }
            Err(Failure::ReplacedMeanwhile(replaced)) => {
                self.suspend(questions, StoreError::effect_unknown, &replaced);
                false
            }
            Err(Failure::Poisoned(error)) => {
                refuse(questions, StoreError::effect_unknown, &self.shared.path, &error);
                false
            }
        }
    }

    /// Refuses a batch and everything after it: the file is not the one that was opened. What only
    /// an unnamed log holds is written back to the database, as long as this connection has it.
    fn suspend(
        &mut self,
        questions: VecDeque<Question>,
        effect: impl Fn(StoreError) -> StoreError,
        replaced: &Replaced,
    ) {
        let outage = Outage::from(replaced);
        for question in questions {
            question.answer(Err(effect(outage.error())));
        }
        self.shared.suspend(outage);
        if replaced.spares_the_database() {
            let _ = self.log.checkpoint(&self.connection);
        }
    }

    /// One bad question must not spoil the others: they are asked one by one.
    fn serve_each(&mut self, mut questions: VecDeque<Question>) -> bool {
        while let Some(question) = questions.pop_front() {
            if !self.serve(VecDeque::from([question])) {
                for untried in questions {
                    let message = "the store is being opened again after a failed write";
                    untried.answer(Err(StoreError::new(StoreErrorKind::Unavailable, message)));
                }
                return false;
            }
        }
        true
    }

    fn batch(&mut self, questions: &VecDeque<Question>) -> Result<Vec<Told>, Failure> {
        self.leaving.clear();
        self.entered.clear();
        self.deleted = 0;
        self.files.check().map_err(Failure::Replaced)?;
        self.begin().map_err(Failure::NotBegun)?;
        let decided = self.decide(questions);
        match decided {
            Ok(told) => {
                self.execute("COMMIT").map_err(Failure::Poisoned)?;
                self.files.check().map_err(Failure::ReplacedMeanwhile)?;
                Ok(told)
            }
            Err(error) => {
                self.undo().map_err(Failure::Poisoned)?;
                Err(Failure::Undone(error))
            }
        }
    }

    fn decide(&mut self, questions: &VecDeque<Question>) -> rusqlite::Result<Vec<Told>> {
        self.catch_up()?;
        if self.running.check(&self.connection)? {
            self.follow_clock()?;
        }
        // One instant for the whole batch, read when the write lock is ours.
        let now = self.clock.now();
        if self.log.take_turned() {
            self.note_time()?;
            self.mark_long_runners()?;
        }
        let told = questions.iter().map(|question| self.apply(&question.ask, now)).collect();
        if self.deleted > 0 {
            let count = "UPDATE meta SET value = value + ?1 WHERE name = 'deleted'";
            self.connection.prepare_cached(count)?.execute([self.deleted])?;
        }
        told
    }

    /// Takes the write lock, in turn with other processes.
    fn begin(&self) -> rusqlite::Result<()> {
        // A lock file that cannot be locked costs fairness, not safety.
        if !self.turn.wait().unwrap_or(true) {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
        let mut pause = Pause::default();
        let begun = loop {
            match self.execute("BEGIN IMMEDIATE") {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                    if !pause.sleep() {
                        break Err(error);
                    }
                }
                begun => break begun,
            }
        };
        let _ = self.turn.pass_on();
        begun
    }

    /// Rolls back. What the batch put into the index leads nowhere and does no harm; but a
    /// neighbour may be given its numbers next, so we go on from the greatest that is certain.
    /// (Asking the file for its greatest would overlook what a neighbour commits just before we
    /// ask.)
    fn undo(&mut self) -> rusqlite::Result<()> {
        self.forget_the_batch();
        if self.connection.is_autocommit() { Ok(()) } else { self.execute("ROLLBACK") }
    }

    fn forget_the_batch(&mut self) {
        self.leaving.clear();
        self.running.clear();
        self.sweeper.start_over();
        for (hash, id) in self.entered.drain(..) {
            self.shared.index.remove(hash, id);
        }
        // If the batch is in the file after all, catching up brings back what is above `known`.
        let _ = self.shared.in_flight().split_off(&self.known.saturating_add(1));
        self.shared.index.set_last(self.known);
    }

    /// Takes out of memory what the committed batch has ended or deleted.
    fn settle_memory(&mut self) {
        self.known = self.shared.index.last();
        self.entered.clear();
        self.pruner.knows_of(self.deleted);
        let mut in_flight = self.shared.in_flight();
        for (hash, id) in self.leaving.drain(..) {
            in_flight.remove(&id);
            if let Some(hash) = hash {
                self.shared.index.remove(hash, id);
            }
        }
    }

    /// What is done between batches.
    fn keep_up(&mut self) -> rusqlite::Result<()> {
        self.pruner.step(&self.connection, &self.shared.index)?;
        if self.log.is_due() { self.log.checkpoint(&self.connection) } else { Ok(()) }
    }

    /// Catches up with other processes while there is nothing else to do, so that the next batch
    /// has little left of it. What fails here is tried again in that batch. `false` when the file
    /// is not the one that was opened.
    fn look_around(&mut self) -> bool {
        if let Err(replaced) = self.files.check() {
            self.suspend(VecDeque::new(), |error| error, &replaced);
            return false;
        }
        let _ = self.catch_up();
        let _ = self.pruner.look(&self.connection, &self.shared.index);
        let _ = self.pruner.step(&self.connection, &self.shared.index);
        true
    }

    /// Learns of the claims of other processes, whose clock may be ahead of ours.
    fn catch_up(&mut self) -> rusqlite::Result<()> {
        let (connection, shared) = (&self.connection, &self.shared);
        let latest = load::newer(connection, shared, &mut self.sweeper, &mut self.neighbours)?;
        self.known = shared.index.last();
        clock_guard::tell_ahead(&shared.path, self.clock.raise_to(latest));
        Ok(())
    }

    /// Compares the clock with the one in the file, which another process may have tied again.
    fn follow_clock(&self) -> rusqlite::Result<()> {
        clock_guard::follow(&self.connection, &self.shared.path, &self.clock)
    }

    /// Marks the claims that have been in flight for long, so that opening the file stays fast.
    /// Those of the last moment are left until the next time: nearly all will have ended by then.
    fn mark_long_runners(&mut self) -> rusqlite::Result<()> {
        for number in load::settle(&self.connection, &self.shared, self.settle_next)? {
            self.running.remove(number);
        }
        self.settle_next = self.known;
        Ok(())
    }

    /// Writes down how late it is, so that no boot takes time back.
    pub(crate) fn note_time(&self) -> rusqlite::Result<()> {
        let note = "UPDATE meta SET value = max(value, ?1) WHERE name = 'seen_at'";
        let now = signed(self.clock.now().as_millis());
        self.connection.prepare_cached(note)?.execute([now]).map(drop)
    }

    /// Opens the file again, after a failed write or once it is back, for as long as it takes;
    /// `false` when the store is closed meanwhile. Requests in between fail, with nothing
    /// done.
    fn reopen(&mut self) -> bool {
        self.forget_the_batch();
        // The old connection must be gone before the new one comes. It must not take the log with
        // it: another log than the one that was open would count as replaced.
        let _ = self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        if let Ok(nothing) = Connection::open_in_memory() {
            self.connection = nothing;
        }
        let mut pause = Duration::from_millis(10);
        loop {
            let Err(error) = self.reconnect() else { return true };
            let Some(questions) = self.shared.writes.take(usize::MAX, pause) else { return false };
            for question in questions {
                let message = format!("the store cannot be opened again: {error}");
                question.answer(Err(StoreError::new(error.kind(), message)));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn reconnect(&mut self) -> Result<(), StoreError> {
        self.files.check_inodes()?;
        let again = Opening::Again(self.file_id);
        let (opened, files) = connect(&self.shared, &mut self.log, again)?;
        let path = &self.shared.path;
        let sqlite = |error| store_error(path, error);
        let last = load::last(&opened.connection).map_err(sqlite)?;
        if last < self.known {
            let message = format!(
                "{}: the file lacks claims that were acknowledged: an older copy is in its place",
                path.display()
            );
            return Err(StoreError::new(StoreErrorKind::Corrupt, message));
        }
        take_turns(&opened.connection).map_err(sqlite)?;
        self.connection = opened.connection;
        // The readers have this clock too.
        self.clock.raise_offset(opened.clock.offset());
        self.files = files;
        self.shared.opened_again();
        Ok(())
    }

    /// The last thing a writer does. Whatever fails here is made good at the next opening.
    fn leave(mut self) {
        if self.begin().is_ok() {
            let noted = self.note_time();
            let _ = self.execute(if noted.is_ok() { "COMMIT" } else { "ROLLBACK" });
        }
        let _ = self.log.checkpoint(&self.connection);
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }
}

/// Opens a connection that writes, on a file whose every byte is durable.
fn connect(
    shared: &Shared,
    log: &mut Log,
    opening: Opening,
) -> Result<(Opened, OpenFiles), StoreError> {
    let path = &shared.path;
    let mut opened = open::writer(path, &shared.settings, opening)?;
    log.watch(&mut opened.connection).map_err(|error| store_error(path, error))?;
    press_to_disk(&opened.connection, path)?;
    let files = OpenFiles::at(path).map_err(|error| {
        let message = format!("{}: the file cannot be reached: {error}", path.display());
        StoreError::new(StoreErrorKind::Unavailable, message).because(error)
    })?;
    Ok((opened, files))
}

/// From here on other processes are waited for by turns, and not inside SQLite.
fn take_turns(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(Duration::ZERO)
}

/// Tells everyone in a batch why it failed.
fn refuse(
    questions: VecDeque<Question>,
    effect: impl Fn(StoreError) -> StoreError,
    path: &Path,
    error: &rusqlite::Error,
) {
    let (kind, advice) = explain(error);
    let message = format!("{}: {advice} ({error})", path.display());
    for question in questions {
        question.answer(Err(effect(StoreError::new(kind, message.clone()))));
    }
}

#[cfg(test)]
mod tests;
