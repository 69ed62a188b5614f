//! The write-ahead log: when it is written back to the file, and how it is made durable at opening.

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

use crate::{error::store_error, turn::PATIENCE};

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
}

impl Log {
    pub(crate) fn new(step: u32) -> Self {
        Self { pages: Arc::default(), step, due_at: step, turned: false }
    }

    /// Counts the commits of this connection.
    pub(crate) fn watch(&mut self, connection: &mut Connection) -> Result<()> {
        let pages = Arc::clone(&self.pages);
        pages.store(0, Ordering::Relaxed);
        self.due_at = self.step;
        connection.wal_hook(Some(move |_: &mut Wal, count| {
            pages.store(u32::try_from(count).unwrap_or_default(), Ordering::Relaxed);
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
}

/// Makes durable whatever the log holds, before anyone is told of it.
///
/// A process that was killed in the middle of a commit may have left frames that were written but
/// never synced; whoever opens the file next finds them complete in the kernel's cache. After a
/// failed sync the kernel may even call them clean. So the log is copied to the file, the file is
/// synced, and the log is cut off. Where another process keeps the log in use that is not possible
/// and not needed: then it was not recovered, and shows only what was synced.
pub(crate) fn press_to_disk(
    connection: &Connection,
    path: &Path,
) -> std::result::Result<(), StoreError> {
    let sqlite = |error| store_error(path, error);
    connection.busy_timeout(NEIGHBOUR_PATIENCE).map_err(sqlite)?;
    // Blocked or not: see above.
    let pressed = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    match pressed {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
        pressed => pressed.map_err(sqlite)?,
    }
    connection.busy_timeout(PATIENCE).map_err(sqlite)?;
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
