//! Online backups of a store, and the steps after a restore.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, SystemTime},
};

use rusqlite::{
    Connection, OpenFlags, Transaction, TransactionBehavior,
    backup::{Backup, StepResult},
};
use semel_core::{Epoch, Fence, StoreError, StoreErrorKind, StoreId, time::millis};

use crate::{
    error::{damaged, store_error},
    index_loader,
    open::{self, OpenMode, meta, set_meta},
    shared::SqliteSettings,
    store::Options,
    tables::signed,
    wal::sync_to_disk,
};

/// Number of pages that are copied between two progress reports: 4 MiB.
const STEP_PAGES: i32 = 512;

/// Pause before the next attempt while the file is locked.
const BUSY_BACKOFF: Duration = Duration::from_millis(10);

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// The bytes copied so far.
    pub bytes_done: u64,
    /// The bytes of the whole store.
    pub bytes_total: u64,
}

/// The result of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// The size of the backup.
    pub bytes: u64,
    /// The id of the copied store.
    pub id: StoreId,
    /// The greatest fence in it, if a claim was ever granted.
    pub last_fence: Option<Fence>,
}

/// The changes by [`Options::after_restore`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqliteRestoreReport {
    /// The id of the store.
    pub id: StoreId,
    /// Time of the backup; `None` if the copy was not made by [`backup`].
    pub backup_at: Option<SystemTime>,
    /// The greatest fence in the file, if a claim was ever granted.
    pub last_fence: Option<Fence>,
    /// Every new fence is greater than this.
    pub fence_floor: Fence,
    /// The epoch before.
    pub epoch_before: Epoch,
    /// The epoch now.
    pub epoch: Epoch,
    /// Number of records that were in flight at the time of the copy. Their outcome is unknown.
    pub in_flight: u64,
}

/// Copies the store at `path` to the new file `target`, while any number of processes use it.
///
/// The copy is a consistent snapshot, readable only by this user. It is checked and durable before
/// it appears under its name; an existing file is never replaced. A copy cannot be opened before
/// [`Options::after_restore`] was called on it.
///
/// The write-ahead log of the store cannot be checkpointed during the copy, and grows meanwhile.
///
/// This function blocks; in async code call it through `spawn_blocking`.
///
/// # Errors
///
/// If there is no store at `path`, `target` exists, or the disk fails.
pub fn backup(
    path: impl AsRef<Path>,
    target: impl AsRef<Path>,
    progress: impl FnMut(BackupProgress),
) -> Result<BackupReport, StoreError> {
    let (path, target) = (path.as_ref(), target.as_ref());
    if fs::symlink_metadata(target).is_ok() {
        return Err(file_exists(target));
    }
    let source = open::source(path)?;
    let partial = PartialFile::create(target)?;
    copy(path, &source, &partial.0, progress)?;
    let made = finish(&partial.0).map_err(|error| store_error(&partial.0, error))?;
    partial.publish(target)?;
    Ok(made)
}

fn file_exists(target: &Path) -> StoreError {
    let message = format!("{}: the file exists already; choose another name", target.display());
    StoreError::new(StoreErrorKind::Unavailable, message)
}

/// Copies all pages in one snapshot.
fn copy(
    path: &Path,
    source: &Connection,
    partial: &Path,
    mut progress: impl FnMut(BackupProgress),
) -> Result<(), StoreError> {
    let sqlite = |error| store_error(path, error);
    let mut copy = connect(partial).map_err(|error| store_error(partial, error))?;
    // The snapshot is kept until the end: otherwise every write would restart the copy.
    let snapshot = source.unchecked_transaction().map_err(sqlite)?;
    snapshot.query_row("SELECT count(*) FROM meta", [], |_| Ok(())).map_err(sqlite)?;
    let page: u64 = snapshot
        .query_row("PRAGMA page_size", [], |row| row.get::<_, i64>(0))
        .map(i64::cast_unsigned)
        .map_err(sqlite)?;
    let backup = Backup::new(&snapshot, &mut copy).map_err(sqlite)?;
    loop {
        let step = backup.step(STEP_PAGES).map_err(sqlite)?;
        let pages = backup.progress();
        let bytes = |pages: i32| u64::try_from(pages).unwrap_or_default().saturating_mul(page);
        progress(BackupProgress {
            bytes_done: bytes(pages.pagecount.saturating_sub(pages.remaining)),
            bytes_total: bytes(pages.pagecount),
        });
        match step {
            StepResult::Done => return Ok(()),
            StepResult::More => {}
            StepResult::Busy | StepResult::Locked | _ => thread::sleep(BUSY_BACKOFF),
        }
    }
}

/// Marks the copy as a backup, and checks it.
fn finish(partial: &Path) -> rusqlite::Result<BackupReport> {
    let copy = connect(partial)?;
    // A single file without a log.
    copy.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    set_meta(&copy, "backup_at", signed(millis(since_unix_epoch())))?;
    let checked: String = copy.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if checked != "ok" {
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
        return Err(rusqlite::Error::SqliteFailure(code, Some(checked)));
    }
    let id = copy.query_row("SELECT value FROM meta WHERE name = 'file_id'", [], |r| r.get(0))?;
    let last = index_loader::last_number(&copy)?;
    copy.close().map_err(|(_, error)| error)?;
    Ok(BackupReport {
        bytes: fs::metadata(partial).map_or(0, |metadata| metadata.len()),
        id: StoreId::from_bytes(id),
        last_fence: fence(last),
    })
}

/// Opens a file that no other process uses. It takes no locks, because the file system of the
/// backups may not support them. The file is synced once, at the end.
fn connect(partial: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[cfg(unix)]
    let copy = Connection::open_with_flags_and_vfs(partial, flags, c"unix-none")?;
    #[cfg(not(unix))]
    let copy = Connection::open_with_flags(partial, flags)?;
    // In this order: the header may require a log, which needs exclusive mode without locks.
    copy.execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA synchronous = OFF")?;
    Ok(copy)
}

fn since_unix_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

fn fence(number: i64) -> Option<Fence> {
    u64::try_from(number).ok().and_then(Fence::new)
}

/// A file that is removed unless it is published.
struct PartialFile(PathBuf);

impl PartialFile {
    fn create(target: &Path) -> Result<Self, StoreError> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!(".{}.partial", std::process::id()));
        let path = PathBuf::from(name);
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(&path).map_err(|error| failed(&path, "cannot be created", error))?;
        Ok(Self(path))
    }

    /// Gives the file its name durably. Never replaces an existing file.
    fn publish(self, target: &Path) -> Result<(), StoreError> {
        let synced = File::open(&self.0).and_then(|file| file.sync_all());
        synced.map_err(|error| failed(&self.0, "cannot be synced", error))?;
        match fs::hard_link(&self.0, target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(file_exists(target));
            }
            // The file system does not support hard links.
            Err(_) if fs::symlink_metadata(target).is_err() => {
                let renamed = fs::rename(&self.0, target);
                renamed.map_err(|error| failed(target, "cannot be created", error))?;
            }
            Err(_) => return Err(file_exists(target)),
        }
        let folder = target.parent().filter(|folder| *folder != Path::new(""));
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|file| file.sync_all());
        synced
            .map_err(|error| failed(target, "was created, but its folder cannot be synced", error))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // It does not exist if it was renamed.
        let _ = fs::remove_file(&self.0);
    }
}

fn failed(path: &Path, what: &str, error: io::Error) -> StoreError {
    let message = format!("{}: the file {what}: {error}", path.display());
    StoreError::new(StoreErrorKind::Unavailable, message).because(error)
}

impl Options {
    /// Prepares a store that was restored from a copy: new fences are above all that were issued
    /// after the copy was made (law 11), and caches drop their entries (law 12).
    ///
    /// Call it after the file was moved to its final path and before any other open. Calling it
    /// again is harmless. This function blocks; in async code call it through `spawn_blocking`.
    ///
    /// # Errors
    ///
    /// If there is no store at `path`, or it cannot be opened.
    pub fn after_restore(&self, path: impl AsRef<Path>) -> Result<SqliteRestoreReport, StoreError> {
        let path = path.as_ref();
        let settings: &SqliteSettings = self.settings();
        let mut opened = open::writer(path, settings, OpenMode::Restored)?;
        let restored = raise_fence_and_epoch(&mut opened.connection, settings, opened.file_id);
        let restored = restored.map_err(|error| store_error(path, error))?;
        sync_to_disk(&opened.connection, path)?;
        Ok(restored)
    }
}

fn raise_fence_and_epoch(
    connection: &mut Connection,
    settings: &SqliteSettings,
    file_id: open::FileId,
) -> rusqlite::Result<SqliteRestoreReport> {
    let work = Transaction::new(connection, TransactionBehavior::Immediate)?;
    let last = index_loader::last_number(&work)?;
    let floor = open::fence_floor(&work, &*settings.clock)?.max(last);
    let fence_floor = fence(floor).ok_or_else(|| damaged("a fence"))?;
    let (epoch_before, backup_at) = (meta(&work, "epoch")?, meta(&work, "backup_at")?);
    // Above every epoch that was reached after the copy: there were fewer operator actions than
    // microseconds.
    let epoch = epoch_before.saturating_add(1).max(floor);
    set_meta(&work, "fence_floor", floor)?;
    set_meta(&work, "epoch", epoch)?;
    set_meta(&work, "backup_at", 0)?;
    let in_flight: i64 = work.query_row(IN_FLIGHT_COUNT, [], |row| row.get(0))?;
    work.commit()?;
    let unsigned = |number: i64| u64::try_from(number).unwrap_or_default();
    let at = |millis: i64| SystemTime::UNIX_EPOCH + Duration::from_millis(unsigned(millis));
    Ok(SqliteRestoreReport {
        id: StoreId::from_bytes(file_id),
        backup_at: (backup_at > 0).then(|| at(backup_at)),
        last_fence: fence(last),
        fence_floor,
        epoch_before: Epoch(unsigned(epoch_before)),
        epoch: Epoch(unsigned(epoch)),
        in_flight: unsigned(in_flight),
    })
}

/// Claims with neither an answer nor another state.
const IN_FLIGHT_COUNT: &str = "SELECT count(*) FROM claims c WHERE \
    NOT EXISTS (SELECT 1 FROM answers a WHERE a.id = c.id) AND \
    NOT EXISTS (SELECT 1 FROM states s WHERE s.id = c.id AND s.state <> 0)";
