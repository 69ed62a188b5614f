//! The transaction of an operation: begun when it first writes.

use std::{fmt, sync::Arc, time::Duration};

use rusqlite::{Connection, Error, Result, ffi};
use semel::joint::{ClaimFile, Entry};
use semel_core::{Answer, Fence, Fenced, Fingerprint, RecordId};
use tokio::{
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit},
    time::timeout,
};

use super::{
    hand::{Hand, failure},
    rows,
};
use crate::{
    open_files::{OpenFiles, Replaced},
    turn::{PATIENCE, Turn},
};

/// The transaction of an operation, through which it writes.
///
/// SQLite lets one transaction write at a time. This one begins with the first
/// [`run`](Self::run), and from there on every other waits until the operation has ended: so do
/// what is slow before.
///
/// Whoever drops it undoes everything.
pub struct SqliteTransaction {
    /// The connection that writes, from the first write on. Given back before the claim.
    held: Option<OwnedMutexGuard<Hand>>,
    writer: Writer,
    _claim: ClaimFile,
    _permit: OwnedSemaphorePermit,
}

/// The connection that writes, for one at a time, and the turns between processes.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) hand: Arc<Mutex<Hand>>,
    pub(super) turn: Arc<Turn>,
    pub(super) files: Arc<OpenFiles>,
}

impl SqliteTransaction {
    pub(super) const fn new(
        writer: Writer,
        claim: ClaimFile,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self { held: None, writer, _claim: claim, _permit: permit }
    }

    /// Does this in the transaction, on the thread that has its connection.
    ///
    /// Neither commit nor roll back there: then nothing of the operation is recorded.
    ///
    /// # Errors
    ///
    /// What the work gave, or that the file was locked for too long (`SQLITE_BUSY`).
    pub async fn run<T, W>(&mut self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let hand = self.begun().await?;
        let done = hand.call(|connection| {
            // Without a transaction it would be committed by itself.
            if connection.is_autocommit() {
                return Err(failure(ffi::SQLITE_ABORT, "the transaction has ended"));
            }
            work(connection)
        });
        done.await?
    }

    /// The connection, with a transaction open on it.
    async fn begun(&mut self) -> Result<Hand> {
        if let Some(hand) = &self.held {
            return Ok(Hand::clone(hand));
        }
        let hand = self.writer.lock().await?;
        // Held from here on: whoever stops waiting leaves a transaction that is to be undone.
        let hand = Hand::clone(self.held.insert(hand));
        let Writer { turn, files, .. } = self.writer.clone();
        let begun = hand.call(move |connection| begin(connection, &turn, &files)).await;
        if let Err(error) = begun.and_then(|begun| begun) {
            self.give_up();
            return Err(error);
        }
        Ok(hand)
    }

    /// Adds the record and commits. The connection and the claim are given back after that, even if
    /// nobody waits for it.
    pub(super) async fn commit(mut self, entry: &Entry<'_>) -> Result<Fenced, Failed> {
        let hand = self.begun().await.map_err(Failed::before)?;
        let entry = Kept::of(entry);
        let done = hand.call(move |connection| {
            let ended = commit(connection, &entry.entry(), &self.writer.files);
            // Nothing is open any more.
            self.held = None;
            drop(self);
            ended
        });
        done.await.map_err(|error| Failed { error, may_have_happened: true })?
    }

    /// Undoes what is open before anybody else gets the connection.
    fn give_up(&mut self) {
        if let Some(hand) = self.held.take() {
            hand.send(roll_back);
        }
    }
}

impl Writer {
    /// Waits for the connection, which others may have.
    pub(super) async fn lock(&self) -> Result<OwnedMutexGuard<Hand>> {
        timeout(PATIENCE, Arc::clone(&self.hand).lock_owned()).await.map_err(|_| {
            let message = "other operations keep the file to themselves: let them write at their \
                           end, after what is slow";
            failure(ffi::SQLITE_BUSY, message)
        })
    }
}

impl Drop for SqliteTransaction {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = self.held.is_some();
        f.debug_struct("SqliteTransaction").field("begun", &begun).finish_non_exhaustive()
    }
}

/// A commit that failed.
pub(super) struct Failed {
    pub(super) error: Error,
    pub(super) may_have_happened: bool,
}

impl Failed {
    const fn before(error: Error) -> Self {
        Self { error, may_have_happened: false }
    }
}

/// An entry that can go to another thread.
struct Kept {
    id: RecordId,
    fingerprint: Fingerprint,
    fence: Fence,
    answer: Answer,
    retention: Duration,
}

impl Kept {
    fn of(entry: &Entry<'_>) -> Self {
        let Entry { id, fingerprint, fence, answer, retention } = *entry;
        Self { id: id.clone(), fingerprint, fence, answer: answer.clone(), retention }
    }

    const fn entry(&self) -> Entry<'_> {
        let Self { id, fingerprint, fence, answer, retention } = self;
        Entry { id, fingerprint: *fingerprint, fence: *fence, answer, retention: *retention }
    }
}

fn begin(connection: &Connection, turn: &Turn, files: &OpenFiles) -> Result<()> {
    roll_back(connection);
    files.check().map_err(|replaced| unreachable_file(&replaced))?;
    let waited = turn.wait().map_err(|error| failure(ffi::SQLITE_IOERR, &error.to_string()))?;
    if !waited {
        return Err(failure(ffi::SQLITE_BUSY, "other processes write without pause"));
    }
    let begun = connection.execute_batch("BEGIN IMMEDIATE; SAVEPOINT semel_joint");
    let _ = turn.pass_on();
    begun
}

/// What is written to a file that is not under its name any more is lost.
fn unreachable_file(replaced: &Replaced) -> Error {
    failure(ffi::SQLITE_CANTOPEN, &replaced.to_string())
}

fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        // What fails is tried again before the next one begins.
        let _ = connection.execute_batch("ROLLBACK");
    }
}

fn commit(connection: &Connection, entry: &Entry<'_>, files: &OpenFiles) -> Result<Fenced, Failed> {
    // The mark that was set at the beginning is gone if somebody ended the transaction meanwhile.
    if connection.execute_batch("RELEASE semel_joint").is_err() {
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
            return Err(Failed::before(error));
        }
    }
    connection.execute_batch("COMMIT").map_err(|error| {
        // Still open, it was refused, by a deferred constraint for example.
        let may_have_happened = connection.is_autocommit();
        roll_back(connection);
        Failed { error, may_have_happened }
    })?;
    let checked = files.check().map_err(|replaced| unreachable_file(&replaced));
    checked.map_err(|error| Failed { error, may_have_happened: true })?;
    Ok(Fenced::Applied)
}
