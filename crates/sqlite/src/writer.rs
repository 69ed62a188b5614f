//! The one thread that writes.
//!
//! It takes whatever has queued up while the last batch was on its way to the disk, decides all of
//! it in one transaction, commits once, and only then answers. There is no delay to collect more:
//! the time of a commit collects enough.
//!
//! A commit whose result is unknown poisons the writer (law 10): everyone in the batch is told that
//! the effect is unknown, the file is opened again, everything in its log is pressed to the disk,
//! and the index is read anew before anything else is decided.

use std::{
    collections::VecDeque,
    fs::File,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode};
use semel_core::{StoreError, StoreErrorKind};

use crate::{
    clock::StoreClock,
    error::{explain, store_error},
    load, open,
    queue::{Question, Told},
    running::Running,
    shared::Shared,
    sweep::Sweeper,
    tables::signed,
    turn::{Pause, Turn},
};

/// How many questions one transaction takes.
const BATCH_MAX: usize = 512;

/// After how many pages in the log the writer moves them to the file: 8 MB. Rather many short
/// stalls than few long ones.
const CHECKPOINT_PAGES: u32 = 2000;

/// How long the writer sleeps when nobody asks anything.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Connection,
    pub(crate) clock: StoreClock,
    turn: Turn,
    /// Pages in the log, as of the last commit.
    log_pages: Arc<AtomicU32>,
    pub(crate) sweeper: Sweeper,
    /// What is taken out of memory once the batch is committed: `(hash, id)`, the hash only where
    /// the index is meant too.
    pub(crate) leaving: Vec<(Option<u64>, i64)>,
    pub(crate) running: Running,
    /// Up to which number claims in flight are marked at the next checkpoint.
    settle_next: i64,
    neighbours: load::Neighbours,
}

/// Why a batch failed.
#[derive(Debug)]
enum Failure {
    /// Before it began: the file could not be had.
    NotBegun(rusqlite::Error),
    /// Before its commit: it was rolled back, nothing happened.
    Undone(rusqlite::Error),
    /// In its commit, or in undoing it: nobody knows.
    Poisoned(rusqlite::Error),
}

impl Writer {
    /// Opens the file, makes durable what it holds, and reads its index.
    pub(crate) fn open(shared: Arc<Shared>) -> Result<Self, StoreError> {
        let (mut connection, clock) =
            open::writer(&shared.path, &shared.source, shared.synchronous)?;
        let sqlite = |error| store_error(&shared.path, error);
        let log_pages = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&log_pages);
        connection
            .wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, pages| {
                counter.store(u32::try_from(pages).unwrap_or_default(), Ordering::Relaxed);
                Ok(())
            }))
            .map_err(sqlite)?;
        let turn = Turn::open(&shared.path).map_err(|error| {
            let path = shared.path.display();
            let message = format!("{path}-turn: the lock file cannot be opened: {error}");
            StoreError::new(StoreErrorKind::ReadOnly, message).because(error)
        })?;
        press_to_disk(&connection, &shared.path)?;
        let mut sweeper = Sweeper::default();
        load::everything(&connection, &shared, &mut sweeper).map_err(sqlite)?;
        let settle_next = shared.index.last();
        Ok(Self {
            shared,
            connection,
            clock,
            turn,
            log_pages,
            sweeper,
            leaving: Vec::new(),
            running: Running::default(),
            settle_next,
            neighbours: load::Neighbours::default(),
        })
    }

    /// Serves the queue until it is closed.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        while let Some(questions) = shared.writes.take(BATCH_MAX, IDLE) {
            if questions.is_empty() {
                self.look_around();
                continue;
            }
            let healthy = self.serve(questions) && self.keep_up();
            if !healthy {
                drop(self);
                match reopen(&shared) {
                    Some(writer) => self = writer,
                    None => return,
                }
            }
        }
        self.leave();
    }

    /// Catches up with other processes while there is nothing else to do, so that the next batch
    /// has little left of it. What fails here is tried again in that batch.
    fn look_around(&mut self) {
        let _ =
            load::newer(&self.connection, &self.shared, &mut self.sweeper, &mut self.neighbours);
    }

    /// Decides and answers a batch; `false` when the writer is poisoned.
    fn serve(&mut self, mut questions: VecDeque<Question>) -> bool {
        // Answers go into their table by number: in order they fill its pages.
        questions.make_contiguous().sort_by_key(|question| question.ask.completes());
        match self.batch(&questions) {
            Ok(told) => {
                self.forget_what_left();
                for (question, told) in questions.into_iter().zip(told) {
                    question.answer(Ok(told));
                }
                true
            }
            // One bad question must not spoil the others: ask them one by one.
            Err(Failure::Undone(_)) if questions.len() > 1 => {
                questions.into_iter().all(|question| self.serve(VecDeque::from([question])))
            }
            Err(Failure::NotBegun(error) | Failure::Undone(error)) => {
                refuse(questions, |error| error, &self.shared.path, &error);
                true
            }
            Err(Failure::Poisoned(error)) => {
                refuse(questions, StoreError::effect_unknown, &self.shared.path, &error);
                false
            }
        }
    }

    fn batch(&mut self, questions: &VecDeque<Question>) -> Result<Vec<Told>, Failure> {
        self.leaving.clear();
        self.begin().map_err(Failure::NotBegun)?;
        let decided = self.decide(questions);
        match decided {
            Ok(told) => {
                self.execute("COMMIT").map_err(Failure::Poisoned)?;
                Ok(told)
            }
            Err(error) => {
                self.undo().map_err(Failure::Poisoned)?;
                Err(Failure::Undone(error))
            }
        }
    }

    fn decide(&mut self, questions: &VecDeque<Question>) -> rusqlite::Result<Vec<Told>> {
        load::newer(&self.connection, &self.shared, &mut self.sweeper, &mut self.neighbours)?;
        self.running.check(&self.connection)?;
        // One instant for the whole batch, read when the write lock is ours.
        let now = self.clock.now();
        if self.log_pages.load(Ordering::Relaxed) >= CHECKPOINT_PAGES {
            self.note_time()?;
            self.settle()?;
        }
        questions.iter().map(|question| self.apply(&question.ask, now)).collect()
    }

    /// Takes the write lock, in turn with other processes.
    fn begin(&self) -> rusqlite::Result<()> {
        let busy = || {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            rusqlite::Error::SqliteFailure(code, None)
        };
        // A lock file that cannot be locked costs fairness, not safety.
        if !self.turn.wait().unwrap_or(true) {
            return Err(busy());
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

    /// Rolls back. What the batch put into the index leads nowhere and does no harm; only the
    /// greatest number must be the file's again, or a neighbour's claim would be overlooked.
    fn undo(&mut self) -> rusqlite::Result<()> {
        self.leaving.clear();
        self.running.clear();
        self.sweeper.start_over();
        if !self.connection.is_autocommit() {
            self.execute("ROLLBACK")?;
        }
        self.shared.index.set_last(load::last(&self.connection)?);
        Ok(())
    }

    fn forget_what_left(&mut self) {
        let mut in_flight = self.shared.in_flight();
        for (hash, id) in self.leaving.drain(..) {
            in_flight.remove(&id);
            if let Some(hash) = hash {
                self.shared.index.remove(hash, id);
            }
        }
    }

    /// What is done between batches; `false` when it failed and the file must be opened again.
    fn keep_up(&mut self) -> bool {
        let reload = self.sweeper.makes_stale(&self.shared.index);
        if reload && load::everything(&self.connection, &self.shared, &mut self.sweeper).is_err() {
            return false;
        }
        if self.log_pages.load(Ordering::Relaxed) < CHECKPOINT_PAGES {
            return true;
        }
        // Readers or another process may keep some pages in the log; the next one takes them.
        self.log_pages.store(0, Ordering::Relaxed);
        checkpoint(&self.connection, "PASSIVE").is_ok()
    }

    /// Marks the long runners, so that opening the file stays fast. Those of the last moment are
    /// left until the next time: nearly all of them will have ended by then.
    fn settle(&mut self) -> rusqlite::Result<()> {
        for number in load::settle(&self.connection, &self.shared, self.settle_next)? {
            self.running.remove(number);
        }
        self.settle_next = self.shared.index.last();
        Ok(())
    }

    fn note_time(&self) -> rusqlite::Result<()> {
        let note = "UPDATE meta SET value = max(value, ?1) WHERE name = 'seen_at'";
        let now = signed(self.clock.now().as_millis());
        self.connection.prepare_cached(note)?.execute([now]).map(drop)
    }

    /// The last thing a writer does. Whatever fails here is made good at the next opening.
    fn leave(self) {
        if self.begin().is_ok() {
            let noted = self.note_time();
            let _ = self.execute(if noted.is_ok() { "COMMIT" } else { "ROLLBACK" });
        }
        let _ = checkpoint(&self.connection, "PASSIVE");
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }
}

fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<bool> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    let blocked: i64 = connection.prepare_cached(&sql)?.query_row([], |row| row.get(0))?;
    Ok(blocked == 0)
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

/// Opens the file again after a commit whose result is unknown, for as long as it takes; `None`
/// when the store is closed meanwhile. Whoever asks in between is told that nothing was done.
fn reopen(shared: &Arc<Shared>) -> Option<Writer> {
    shared.begin_load();
    let mut pause = Duration::from_millis(10);
    loop {
        let error = match Writer::open(Arc::clone(shared)) {
            Ok(writer) => return Some(writer),
            Err(error) => error,
        };
        let questions = shared.writes.take(usize::MAX, pause)?;
        for question in questions {
            let message = format!("the store is being opened again after a failed write: {error}");
            question.answer(Err(StoreError::new(error.kind(), message)));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Makes durable whatever the log holds, before anyone is told of it.
///
/// A process that was killed in the middle of a commit may have left frames that were written but
/// never synced; whoever opens the file next finds them complete in the kernel's cache. After a
/// failed sync the kernel may even call them clean. So the log is copied to the file, the file is
/// synced, and the log is cut off. Where another process keeps the log in use that is not possible
/// and not needed: then it was not recovered, and shows only what was synced.
fn press_to_disk(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    for _ in 0..20 {
        if checkpoint(connection, "TRUNCATE").map_err(|error| store_error(path, error))? {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // SQLite keeps its locks on the other files, so this one may be opened and closed beside it.
    if let Ok(log) = File::options().append(true).open(log) {
        log.sync_all().map_err(|error| {
            let message = format!("{}: the log cannot be synced: {error}", path.display());
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        })?;
    }
    Ok(())
}
