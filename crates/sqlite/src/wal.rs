//! The write-ahead log: its checkpoints, and how it is synced at opening.

use std::{
    fs::File,
    mem,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, Result, hooks::Wal};
use semel_core::{StoreError, StoreErrorKind};

use crate::{error::store_error, fair_lock::LOCK_TIMEOUT};

/// How long an opening waits for another process that uses the log.
const CHECKPOINT_LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Counts the pages in the log and runs checkpoints.
#[derive(Debug)]
pub(crate) struct WriteAheadLog {
    /// Pages in the log, as of the last commit.
    pages: Arc<AtomicU32>,
    /// How many pages make a checkpoint due.
    checkpoint_pages: u32,
    /// At how many pages the next checkpoint is due. It is more than `checkpoint_pages` while a
    /// reader blocks checkpoints, or every commit would try one.
    due_at: u32,
    /// Whether there was a checkpoint since the last [`WriteAheadLog::take_checkpointed`].
    checkpointed: bool,
}

impl WriteAheadLog {
    pub(crate) fn new(checkpoint_pages: u32) -> Self {
        Self {
            pages: Arc::default(),
            checkpoint_pages,
            due_at: checkpoint_pages,
            checkpointed: false,
        }
    }

    /// Counts the pages that this connection commits.
    pub(crate) fn attach(&mut self, connection: &mut Connection) -> Result<()> {
        let pages = Arc::clone(&self.pages);
        pages.store(0, Ordering::Relaxed);
        self.due_at = self.checkpoint_pages;
        connection.wal_hook(Some(move |_: &mut Wal, count| {
            pages.store(u32::try_from(count).unwrap_or_default(), Ordering::Relaxed);
            Ok(())
        }))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= self.due_at
    }

    /// Runs a checkpoint that waits for no reader.
    pub(crate) fn checkpoint(&mut self, connection: &Connection) -> Result<()> {
        let (pages, written) = connection
            .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
            .query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
        self.due_at = self.checkpoint_pages;
        if written < pages {
            self.due_at =
                self.checkpoint_pages.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX));
        }
        self.pages.store(0, Ordering::Relaxed);
        self.checkpointed = true;
        Ok(())
    }

    /// Whether there was a checkpoint since the last call: the time for periodic work in a
    /// transaction.
    pub(crate) const fn take_checkpointed(&mut self) -> bool {
        mem::replace(&mut self.checkpointed, false)
    }
}

/// Syncs the content of the log before any of it is reported.
///
/// A process that was killed during a commit may leave frames that were written but never synced.
/// The next process to open the file finds them complete in the kernel's cache. After a failed sync
/// the kernel may even report them as clean. So the log is copied to the file, the file is synced,
/// and the log is truncated. If another process uses the log, that is neither possible nor needed:
/// the log was not recovered, and shows only what was synced.
pub(crate) fn sync_to_disk(
    connection: &Connection,
    path: &Path,
) -> std::result::Result<(), StoreError> {
    let sqlite = |error| store_error(path, error);
    connection.busy_timeout(CHECKPOINT_LOCK_TIMEOUT).map_err(sqlite)?;
    // It may be blocked: see above.
    let synced = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    match synced {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
        synced => synced.map_err(sqlite)?,
    }
    connection.busy_timeout(LOCK_TIMEOUT).map_err(sqlite)?;
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
