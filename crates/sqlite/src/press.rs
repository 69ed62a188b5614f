//! Presses commits to the disk, beside the writer.
//!
//! A commit by itself only writes to the log; what was decided in it is told once the log is synced
//! (law 10). While one batch is synced the writer decides the next, so that neither the disk nor
//! the processors wait for the other. It is never more than one batch ahead: more would make
//! batches smaller, and each costs.
//!
//! After a sync that failed, nobody knows what is on the disk, and a later sync proves nothing: the
//! kernel may call pages clean that it has lost. So from there on everyone is told that the effect
//! is unknown, until the writer has opened the file again.

use std::{
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

use semel_core::{StoreError, StoreErrorKind};

use crate::{
    desk::Outbox,
    open::Synchronous,
    queue::{Question, Told},
};

/// What a batch decided: it may be told once its commit is on the disk.
pub(crate) type Decided = Vec<(Question, Told)>;

#[derive(Debug)]
pub(crate) struct Press {
    path: PathBuf,
    synchronous: Synchronous,
    state: Mutex<State>,
    changed: Condvar,
    /// The log, as a file of our own. SQLite has its locks on other files, so this one may be
    /// opened and closed beside it.
    log: Mutex<Option<File>>,
    outbox: Mutex<Outbox>,
}

#[derive(Debug, Default)]
struct State {
    /// Committed and not yet synced.
    next: Option<Decided>,
    /// Whether the thread is syncing.
    busy: bool,
    failed: bool,
    closed: bool,
}

impl Press {
    /// For the store at `path`.
    pub(crate) fn new(path: &Path, synchronous: Synchronous) -> Self {
        Self {
            path: path.to_owned(),
            synchronous,
            state: Mutex::default(),
            changed: Condvar::new(),
            log: Mutex::default(),
            outbox: Mutex::default(),
        }
    }

    /// Begins, or begins again, with a log that holds nothing that is not on the disk.
    pub(crate) fn begin(&self) -> io::Result<()> {
        let log = File::options().append(true).open(log_path(&self.path))?;
        *lock(&self.log) = Some(log);
        self.lock().failed = false;
        Ok(())
    }

    /// Syncs what it is given, until it is closed: what the thread of its own does.
    pub(crate) fn run(&self) {
        let mut state = self.lock();
        loop {
            if let Some(decided) = state.next.take() {
                state.busy = true;
                self.changed.notify_all();
                drop(state);
                self.finish(decided);
                state = self.lock();
                state.busy = false;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }

    /// Waits until the writer is not more than one batch ahead.
    pub(crate) fn make_room(&self) {
        let mut state = self.lock();
        while state.next.is_some() {
            state = self.wait(state);
        }
    }

    /// Waits until nothing is left to be synced.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        while state.next.is_some() || state.busy {
            state = self.wait(state);
        }
    }

    /// Whether all that was ever given is on the disk, and told.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.next.is_none() && !state.busy
    }

    /// Whether a sync has failed since it began.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Syncs and tells, in the thread of its own. There must be [room](Self::make_room).
    pub(crate) fn hand_over(&self, decided: Decided) {
        self.lock().next = Some(decided);
        self.changed.notify_all();
    }

    /// Syncs and tells here and now: the shortest way while nothing else waits.
    pub(crate) fn finish(&self, decided: Decided) {
        let synced = if self.has_failed() { Err(io::Error::other(FAILED)) } else { self.sync() };
        match synced {
            Ok(()) => self.tell(decided),
            Err(error) => {
                self.lock().failed = true;
                let path = self.path.display();
                let message = format!("{path}: the disk failed to write: {error}");
                for (question, _) in decided {
                    let error = StoreError::new(StoreErrorKind::Unavailable, message.clone());
                    question.answer(Err(error.effect_unknown()));
                }
            }
        }
    }

    /// Tells what is on the disk already.
    pub(crate) fn tell(&self, decided: Decided) {
        let mut outbox = lock(&self.outbox);
        for (question, told) in decided {
            question.answer_by(&mut outbox, told);
        }
        outbox.deliver();
    }

    /// For moments of leisure: see [`Outbox::tidy`].
    pub(crate) fn tidy(&self) {
        lock(&self.outbox).tidy();
    }

    /// Takes nothing more; what it has is still synced and told.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn sync(&self) -> io::Result<()> {
        match (&*lock(&self.log), self.synchronous) {
            (_, Synchronous::Off) => Ok(()),
            (Some(log), Synchronous::Full) => log.sync_data(),
            (None, Synchronous::Full) => Err(io::Error::other("the log is not open")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

const FAILED: &str = "an earlier sync failed";

/// The file beside a database that SQLite keeps its log in.
pub(crate) fn log_path(path: &Path) -> PathBuf {
    let mut log = OsString::from(path);
    log.push("-wal");
    log.into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
