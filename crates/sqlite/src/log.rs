//! The write-ahead log: when it is written back to the file, and how it is made durable at opening.

use std::{
    fs::File,
    mem,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, Result, hooks::Wal};
use semel_core::{StoreError, StoreErrorKind};

use crate::{error::store_error, press::log_path, turn::PATIENCE};

/// How long an opening waits for a neighbour to let go of the log.
const NEIGHBOUR_PATIENCE: Duration = Duration::from_millis(100);

/// Counts the pages in the log and writes them back when there are enough.
#[derive(Debug)]
pub(crate) struct Log {
    /// Pages in the log, as of the last commit.
    pages: Arc<AtomicU32>,
    /// How many make a checkpoint.
    step: u32,
    /// At how many the next one is due: more than a step while somebody keeps the log from being
    /// written back, or every commit would try in vain.
    due_at: u32,
    /// Whether there was a checkpoint since [`Log::take_turned`] was last asked.
    turned: bool,
    /// Whether a commit has written since [`Log::take_written`] was last asked.
    written: Arc<AtomicBool>,
}

impl Log {
    pub(crate) fn new(step: u32) -> Self {
        let (pages, written) = (Arc::default(), Arc::default());
        Self { pages, step, due_at: step, turned: false, written }
    }

    /// Counts the commits of this connection.
    pub(crate) fn watch(&mut self, connection: &mut Connection) -> Result<()> {
        let (pages, written) = (Arc::clone(&self.pages), Arc::clone(&self.written));
        pages.store(0, Ordering::Relaxed);
        self.due_at = self.step;
        connection.wal_hook(Some(move |_: &mut Wal, count| {
            pages.store(u32::try_from(count).unwrap_or_default(), Ordering::Relaxed);
            written.store(true, Ordering::Relaxed);
            Ok(())
        }))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= self.due_at
    }

    /// Writes back what can be written back without waiting for anybody.
    pub(crate) fn checkpoint(&mut self, connection: &Connection) -> Result<()> {
        let (pages, written) = connection
            .prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?
            .query_row([], |row| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
        self.due_at = self.step;
        if written < pages {
            self.due_at = self.step.saturating_add(u32::try_from(pages).unwrap_or(u32::MAX));
        }
        self.pages.store(0, Ordering::Relaxed);
        self.turned = true;
        Ok(())
    }

    /// Whether there was a checkpoint since this was last asked: the moment for what a transaction
    /// does now and then.
    pub(crate) const fn take_turned(&mut self) -> bool {
        mem::replace(&mut self.turned, false)
    }

    /// Whether a commit has written since this was last asked: an empty one has nothing to sync.
    pub(crate) fn take_written(&self) -> bool {
        self.written.swap(false, Ordering::Relaxed)
    }
}

/// Makes durable whatever the log holds, before anyone is told of it.
///
/// A process that was killed in the middle of a commit may have left frames that were written but
/// never synced; whoever opens the file next finds them complete in the kernel's cache. After a
/// failed sync the kernel may even call them clean. So the log is copied to the file, the file is
/// synced, and the log is cut off. Where another process keeps the log in use that is not possible;
/// then it was not recovered, no page of it is lost, and to sync it is enough.
pub(crate) fn press_to_disk(
    connection: &Connection,
    path: &Path,
) -> std::result::Result<(), StoreError> {
    let sqlite = |error| store_error(path, error);
    connection.busy_timeout(NEIGHBOUR_PATIENCE).map_err(sqlite)?;
    let pressed = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    match pressed {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
        pressed => pressed.map_err(sqlite)?,
    }
    connection.busy_timeout(PATIENCE).map_err(sqlite)?;
    // SQLite keeps its locks on the other files, so this one may be opened and closed beside it.
    if let Ok(log) = File::options().append(true).open(log_path(path)) {
        log.sync_all().map_err(|error| {
            let message = format!("{}: the log cannot be synced: {error}", path.display());
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        })?;
    }
    Ok(())
}
