//! The transaction of an operation: it begins with the first write.

use std::{fmt, sync::Arc, time::Duration};

use rusqlite::{Connection, Error, Result, ffi};
use semel::transactional::{ClaimFile, Entry};
use semel_core::{Answer, Fence, Fenced, Fingerprint, RecordId};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit},
    time::timeout,
};

use super::{
    connection_thread::{ConnectionThread, failure},
    rows,
};
use crate::{
    fair_lock::{FairLock, LOCK_TIMEOUT},
    open_files::{FileReplaced, OpenFiles},
};

/// The transaction of an operation, through which it writes.
///
/// SQLite allows one write transaction at a time. This one begins with the first
/// [`run`](Self::run), and from there on every other waits until the operation has ended: so do
/// slow work before.
///
/// Dropping it rolls everything back.
pub struct SqliteTransaction {
    /// The write connection, from the first write on. Released before the claim.
    connection_guard: Option<OwnedMutexGuard<ConnectionThread>>,
    writer: WriteConnection,
    _claim: ClaimFile,
    _permit: OwnedSemaphorePermit,
}

/// The write connection, for one operation at a time, and the fair lock between processes.
#[derive(Clone, Debug)]
pub(super) struct WriteConnection {
    pub(super) thread: Arc<Mutex<ConnectionThread>>,
    pub(super) fair_lock: Arc<FairLock>,
    pub(super) files: Arc<OpenFiles>,
}

impl SqliteTransaction {
    pub(super) const fn new(
        writer: WriteConnection,
        claim: ClaimFile,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { connection_guard: None, writer, _claim: claim, _permit: permit }
    }

    /// Runs this in the transaction, on the thread of its connection.
    ///
    /// Do not commit or roll back there: then nothing of the operation is recorded.
    ///
    /// # Errors
    ///
    /// The error of the work, or `SQLITE_BUSY` if the file was locked for too long.
    pub async fn run<T, W>(&mut self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let thread = self.ensure_begun().await?;
        let done = thread.call(|connection| {
            // Without a transaction each statement would be committed on its own.
            if connection.is_autocommit() {
                return Err(failure(ffi::SQLITE_ABORT, "the transaction has ended"));
            }
            work(connection)
        });
        done.await?
    }

    /// The connection, with a transaction open on it.
    async fn ensure_begun(&mut self) -> Result<ConnectionThread> {
        if let Some(thread) = &self.connection_guard {
            return Ok(ConnectionThread::clone(thread));
        }
        let thread = self.writer.lock().await?;
        // Held from here on: if the caller stops waiting, the transaction is rolled back on drop.
        let thread = ConnectionThread::clone(self.connection_guard.insert(thread));
        let WriteConnection { fair_lock, files, .. } = self.writer.clone();
        let begun = thread.call(move |connection| begin(connection, &fair_lock, &files)).await;
        if let Err(error) = begun.and_then(|begun| begun) {
            self.abandon();
            return Err(error);
        }
        Ok(thread)
    }

    /// Adds the record and commits. The connection and the claim are released after that, even if
    /// the caller stops waiting.
    pub(super) async fn commit(mut self, entry: &Entry<'_>) -> Result<Fenced, CommitError> {
        let thread = self.ensure_begun().await.map_err(CommitError::before)?;
        let entry = OwnedEntry::of(entry);
        let done = thread.call(move |connection| {
            let ended = commit(connection, &entry.entry(), &self.writer.files);
            // No transaction is open any more.
            self.connection_guard = None;
            drop(self);
            ended
        });
        done.await.map_err(|error| CommitError { error, may_have_happened: true })?
    }

    /// Rolls back before another operation gets the connection.
    fn abandon(&mut self) {
        if let Some(thread) = self.connection_guard.take() {
            thread.send(roll_back);
        }
    }
}

impl WriteConnection {
    /// Waits for the connection, which another operation may have.
    pub(super) async fn lock(&self) -> Result<OwnedMutexGuard<ConnectionThread>> {
        timeout(LOCK_TIMEOUT, Arc::clone(&self.thread).lock_owned()).await.map_err(|_| {
            let message = "other operations keep the file locked: do slow work before the first \
                           write";
            failure(ffi::SQLITE_BUSY, message)
        })
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = self.connection_guard.is_some();
        f.debug_struct("SqliteTransaction").field("begun", &begun).finish_non_exhaustive()
    }
}

/// A commit that failed.
pub(super) struct CommitError {
    pub(super) error: Error,
    pub(super) may_have_happened: bool,
}

impl CommitError {
    const fn before(error: Error) -> Self {
        Self { error, may_have_happened: false }
    }
}

/// An entry that can be sent to another thread.
struct OwnedEntry {
    id: RecordId,
    fingerprint: Fingerprint,
    fence: Fence,
    answer: Answer,
    retention: Duration,
}

impl OwnedEntry {
    fn of(entry: &Entry<'_>) -> Self {
        let Entry { id, fingerprint, fence, answer, retention } = *entry;
        Self { id: id.clone(), fingerprint, fence, answer: answer.clone(), retention }
    }

    const fn entry(&self) -> Entry<'_> {
        let Self { id, fingerprint, fence, answer, retention } = self;
        Entry { id, fingerprint: *fingerprint, fence: *fence, answer, retention: *retention }
    }
}

fn begin(connection: &Connection, fair_lock: &FairLock, files: &OpenFiles) -> Result<()> {
    roll_back(connection);
    files.check().map_err(|replaced| unreachable_file(&replaced))?;
    let waited =
        fair_lock.lock().map_err(|error| failure(ffi::SQLITE_IOERR, &error.to_string()))?;
    if !waited {
        return Err(failure(ffi::SQLITE_BUSY, "other processes write without pause"));
    }
    let begun = connection.execute_batch("BEGIN IMMEDIATE; SAVEPOINT semel_transactional");
    let _ = fair_lock.unlock();
    begun
}

/// A write to a file that was removed or replaced is lost.
fn unreachable_file(replaced: &FileReplaced) -> Error {
    failure(ffi::SQLITE_CANTOPEN, &replaced.to_string())
}

fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        // A failure is retried before the next transaction begins.
        let _ = connection.execute_batch("ROLLBACK");
    }
}

fn commit(
    connection: &Connection,
    entry: &Entry<'_>,
    files: &OpenFiles,
) -> Result<Fenced, CommitError> {
    // The savepoint is gone if the operation ended the transaction itself.
    if connection.execute_batch("RELEASE semel_transactional").is_err() {
        roll_back(connection);
        return Ok(Fenced::Lost);
    }
    match rows::record(connection, entry) {
        Ok(Fenced::Applied) => {}
        Ok(Fenced::Lost) => {
            roll_back(connection);
            return Ok(Fenced::Lost);
        }
        Err(error) => {
            roll_back(connection);
            return Err(CommitError::before(error));
        }
    }
    connection.execute_batch("COMMIT").map_err(|error| {
        // If it is still open, the commit was refused, by a deferred constraint for example.
        let may_have_happened = connection.is_autocommit();
        roll_back(connection);
        CommitError { error, may_have_happened }
    })?;
    let checked = files.check().map_err(|replaced| unreachable_file(&replaced));
    checked.map_err(|error| CommitError { error, may_have_happened: true })?;
    Ok(Fenced::Applied)
}
