//! Opens a file: checks it, configures the connection, and runs migrations.

use std::{error::Error as _, fs::File, path::Path, sync::Arc, thread, time::Duration};

use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior,
    config::DbConfig,
};
use semel_core::{StoreError, StoreErrorKind, time::millis};

use crate::{
    clock::{Anchor, AnchoredClock, BootClock, StoreClock},
    error::{NoStore, store_error},
    fair_lock::LOCK_TIMEOUT,
    file_system::{FileSystem, refuse_network},
    shared::{SqliteSettings, Synchronous},
    tables::signed,
};

/// `SEML`, in the header of every file of ours.
const APPLICATION_ID: i64 = 0x5345_4d4c;

/// One script per version, in order; opening runs those that a file lacks.
const MIGRATIONS: &[&str] = &[include_str!("../migrations/0001.sql")];

/// How often opening a locked file is attempted.
const OPEN_ATTEMPTS_MAX: u32 = 20;

/// Why a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The first opening: a missing file is created, unless the settings forbid it.
    First,
    /// The first opening after a restore: the file may be a backup.
    Restored,
    /// After a failed write: it must be the same file. Another one in its place (an empty mount
    /// point, an older copy) would grant every claim again.
    Reopen(FileId),
}

/// Sixteen random bytes in each file.
pub(crate) type FileId = [u8; 16];

/// The write connection, and what its opening found.
#[derive(Debug)]
pub(crate) struct OpenedStore {
    pub(crate) connection: Connection,
    pub(crate) clock: StoreClock,
    pub(crate) file_id: FileId,
    /// Every fence issued from here on is greater than this.
    pub(crate) fence_floor: i64,
    /// How long the file was unused, by the wall clock; `None` where the boot clock measured it.
    pub(crate) unused_for: Option<Duration>,
    /// Whether this opening created the store.
    pub(crate) is_new: bool,
    /// When the store was created: milliseconds since 1970.
    pub(crate) created_at: i64,
}

/// Opens the write connection, and anchors the store's clock to the file.
///
/// While several processes open a file at the same time, or the last one closes it, SQLite reports
/// it as locked at once, regardless of the busy timeout: the opening is retried.
pub(crate) fn writer(
    path: &Path,
    settings: &SqliteSettings,
    mode: OpenMode,
) -> Result<OpenedStore, StoreError> {
    let mut attempts_left = OPEN_ATTEMPTS_MAX;
    loop {
        attempts_left -= 1;
        match try_writer(path, settings, mode) {
            Err(error) if is_locked(&error) && attempts_left > 0 => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return opened,
        }
    }
}

fn is_locked(error: &StoreError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<rusqlite::Error>());
    source.and_then(rusqlite::Error::sqlite_error_code) == Some(ErrorCode::DatabaseBusy)
}

fn try_writer(
    path: &Path,
    settings: &SqliteSettings,
    mode: OpenMode,
) -> Result<OpenedStore, StoreError> {
    let sqlite = |error| store_error(path, error);
    if settings.clock.boot_id().is_empty() {
        let message = "the boot id cannot be read: make /proc readable";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    // SQLite reports a folder that cannot be reached.
    if let Some(found) = settings.file_system.or_else(|| FileSystem::of(path).ok()) {
        refuse_network(path, found)?;
    }
    match mode {
        OpenMode::First if settings.create => create_private(path),
        OpenMode::First | OpenMode::Restored if !path.exists() => return Err(no_store(path)),
        OpenMode::First | OpenMode::Restored | OpenMode::Reopen(_) => {}
    }
    let mut connection = connect(path)?;
    connection.busy_timeout(LOCK_TIMEOUT / OPEN_ATTEMPTS_MAX).map_err(sqlite)?;
    check_header(path, &connection, settings, mode)?;
    connection
        .execute_batch(match settings.synchronous {
            Synchronous::Full => "PRAGMA synchronous = FULL",
            Synchronous::Off => "PRAGMA synchronous = OFF",
        })
        .map_err(sqlite)?;
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sqlite)?;
    if mode != "wal" {
        let message = format!(
            "{}: the file system cannot share memory, which the write-ahead log needs: \
             put the file on a local disk",
            path.display()
        );
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    // The writer runs checkpoints, in small pieces and between batches.
    connection.execute_batch("PRAGMA wal_autocheckpoint = 0").map_err(sqlite)?;
    let up = migrate(&mut connection, &settings.clock).map_err(sqlite)?;
    let MigratedFile { clock, file_id, fence_floor, unused_for, is_new, created_at } = up;
    Ok(OpenedStore { connection, clock, file_id, fence_floor, unused_for, is_new, created_at })
}

/// Opens a connection that only reads.
pub(crate) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(|error| store_error(path, error))?;
    Ok(connection)
}

/// Creates the file for this user alone, because it holds answers; the log inherits its
/// permissions. An existing file keeps its own, and is not opened here: closing it again would drop
/// the locks of another connection in this process.
#[cfg(unix)]
fn create_private(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt as _;
    // SQLite reports the cause if this fails.
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

#[cfg(not(unix))]
fn create_private(_: &Path) {}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let sqlite = |error| store_error(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    if connection.is_readonly("main").map_err(sqlite)? {
        let message = format!(
            "{}: the file is read-only: make it and its folder writable for this user",
            path.display()
        );
        return Err(StoreError::new(StoreErrorKind::ReadOnly, message));
    }
    connection.busy_timeout(LOCK_TIMEOUT).map_err(sqlite)?;
    connection.set_prepared_statement_cache_capacity(48);
    // Plans never depend on bound values: otherwise SQLite prepares a statement again whenever it
    // is bound to another id, which took a third of the writer's time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite)?;
    // The page size applies to a new file. Answers of 500 bytes leave a tenth of a page of 4 KiB
    // empty, and log and checkpoint make twice as many calls for the same bytes.
    connection
        .execute_batch(
            "PRAGMA page_size = 8192; PRAGMA cache_size = -32768; PRAGMA temp_store = MEMORY",
        )
        .map_err(sqlite)?;
    connection.execute_batch(FULL_SYNC).map_err(sqlite)?;
    Ok(connection)
}

/// On macOS a plain sync leaves data in the cache of the disk, where a power cut loses it. These
/// request a full sync there, and have no effect elsewhere.
pub(crate) const FULL_SYNC: &str = "PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON";

/// The format version that this program writes.
fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX).saturating_add(UNRELEASED)
}

/// Versions up to this one were never released.
const UNRELEASED: i64 = 3;

/// Refuses a file of another program, of a newer version, or other than the expected one, before
/// anything is changed in it.
fn check_header(
    path: &Path,
    connection: &Connection,
    settings: &SqliteSettings,
    mode: OpenMode,
) -> Result<(), StoreError> {
    let found = read_header(connection).map_err(|error| store_error(path, error))?;
    let refuse = |kind, why: &str| Err(StoreError::new(kind, format!("{}: {why}", path.display())));
    let ours = found.application == APPLICATION_ID;
    let fresh = found.application == 0 && found.version == 0 && found.objects == 0;
    if let OpenMode::Reopen(file_id) = mode {
        return if ours && found.file_id == Some(file_id) {
            Ok(())
        } else {
            let why = "another file has taken the place of the one that was open: \
                       put that one back, or start again";
            refuse(StoreErrorKind::Corrupt, why)
        };
    }
    if fresh {
        let made = mode == OpenMode::First && settings.create;
        return if made { Ok(()) } else { Err(no_store(path)) };
    }
    refuse_foreign(path, &found)?;
    if found.backup_at > 0 && mode != OpenMode::Restored {
        let why = "this is a backup: once it is in its place, run `semel migrate --after-restore`, \
                   so that fences go on above all that were issued";
        return refuse(StoreErrorKind::Unavailable, why);
    }
    Ok(())
}

/// Refuses a file of another program or of a newer version.
fn refuse_foreign(path: &Path, found: &FileHeader) -> Result<(), StoreError> {
    let refuse = |kind, why: &str| Err(StoreError::new(kind, format!("{}: {why}", path.display())));
    if found.application != APPLICATION_ID {
        let why = "this is the database of another program; give Semel a file of its own";
        return refuse(StoreErrorKind::Corrupt, why);
    }
    if found.version <= UNRELEASED {
        let why = "the file was written by a version of Semel that was never released: \
                   move it away and begin with a new one";
        return refuse(StoreErrorKind::Corrupt, why);
    }
    if found.version > newest() {
        let why = format!(
            "the file has format version {}, this Semel knows versions up to {}: \
             run the newer Semel that wrote it",
            found.version,
            newest()
        );
        return refuse(StoreErrorKind::Newer, &why);
    }
    Ok(())
}

/// Opens a store for reading, for a backup.
pub(crate) fn source(path: &Path) -> Result<Connection, StoreError> {
    if !path.exists() {
        return Err(no_store(path));
    }
    let connection = reader(path)?;
    let found = read_header(&connection).map_err(|error| store_error(path, error))?;
    if found.application == 0 && found.objects == 0 {
        return Err(no_store(path));
    }
    refuse_foreign(path, &found)?;
    Ok(connection)
}

fn no_store(path: &Path) -> StoreError {
    let message = format!("{}: there is no store in this file", path.display());
    StoreError::new(StoreErrorKind::Unavailable, message).because(NoStore)
}

/// The identifying fields of a file.
struct FileHeader {
    application: i64,
    version: i64,
    objects: i64,
    file_id: Option<FileId>,
    backup_at: i64,
}

/// Reads all fields in one snapshot: another process may be running migrations.
fn read_header(connection: &Connection) -> rusqlite::Result<FileHeader> {
    let snapshot = connection.unchecked_transaction()?;
    let number = |sql: &str| snapshot.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id")?;
    let ours = application == APPLICATION_ID;
    Ok(FileHeader {
        application,
        version: number("PRAGMA user_version")?,
        objects: number("SELECT count(*) FROM sqlite_schema")?,
        file_id: if ours { Some(file_id(&snapshot)?) } else { None },
        // Absent in unreleased formats.
        backup_at: if ours { meta(&snapshot, "backup_at").optional()?.unwrap_or(0) } else { 0 },
    })
}

/// A number in the table `meta`.
pub(crate) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<i64> {
    connection.query_row("SELECT value FROM meta WHERE name = ?1", [name], |row| row.get(0))
}

/// Sets a number in the table `meta`.
pub(crate) fn set_meta(connection: &Connection, name: &str, value: i64) -> rusqlite::Result<()> {
    connection.execute("UPDATE meta SET value = ?2 WHERE name = ?1", (name, value)).map(drop)
}

fn file_id(connection: &Connection) -> rusqlite::Result<FileId> {
    connection.query_row("SELECT value FROM meta WHERE name = 'file_id'", [], |row| row.get(0))
}

/// A file of the newest version.
struct MigratedFile {
    clock: StoreClock,
    file_id: FileId,
    fence_floor: i64,
    unused_for: Option<Duration>,
    is_new: bool,
    created_at: i64,
}

/// Runs the missing migrations and anchors the clock, in one transaction. If several processes open
/// a new file at once, one of them does it.
fn migrate(
    connection: &mut Connection,
    clock: &Arc<dyn BootClock>,
) -> rusqlite::Result<MigratedFile> {
    let work = Transaction::new(connection, TransactionBehavior::Immediate)?;
    let version: i64 = work.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let seen = usize::try_from((version - UNRELEASED).max(0)).unwrap_or(usize::MAX);
    for script in MIGRATIONS.iter().skip(seen) {
        work.execute_batch(script)?;
    }
    if seen < MIGRATIONS.len() {
        work.pragma_update(None, "application_id", APPLICATION_ID)?;
        work.pragma_update(None, "user_version", newest())?;
    }
    if seen == 0 {
        set_meta(&work, "created_at", signed(millis(clock.wall())))?;
    }
    let fence_floor = fence_floor(&work, &**clock)?;
    let before = read_anchor(&work)?;
    let AnchoredClock { clock, anchor } = StoreClock::from_anchor(Arc::clone(clock), &before);
    let unused_for = anchor.as_ref().filter(|_| before.seen_at > 0).map(|anchor| {
        let unused_for = anchor.seen_at.saturating_sub(before.seen_at);
        Duration::from_millis(u64::try_from(unused_for).unwrap_or_default())
    });
    if let Some(anchor) = anchor {
        let set = "UPDATE meta SET value = ?1 WHERE name = 'boot_id'";
        work.execute(set, [&anchor.boot_id])?;
        set_meta(&work, "boot_offset", anchor.offset)?;
        set_meta(&work, "seen_at", anchor.seen_at)?;
    }
    let (file_id, created_at) = (file_id(&work)?, meta(&work, "created_at")?);
    work.commit()?;
    Ok(MigratedFile { clock, file_id, fence_floor, unused_for, is_new: seen == 0, created_at })
}

/// The number above which fences are issued (law 11): the wall clock in microseconds, or what an
/// operator has raised it to.
///
/// A store issues fewer than a million fences a second, so the wall clock is above every fence that
/// was issued before: by this file, by one that was lost, and by the file of which this is an older
/// copy. A wall clock that was set back does not affect this file, which continues from its own
/// greatest number.
pub(crate) fn fence_floor(connection: &Connection, clock: &dyn BootClock) -> rusqlite::Result<i64> {
    let raised = meta(connection, "fence_floor")?;
    Ok(raised.max(i64::try_from(clock.wall().as_micros()).unwrap_or_default()))
}

fn read_anchor(connection: &Connection) -> Result<Anchor, rusqlite::Error> {
    let newest: Option<i64> = connection
        .query_row("SELECT claimed_at FROM claims ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
        .optional()?;
    let boot_id = "SELECT value FROM meta WHERE name = 'boot_id'";
    Ok(Anchor {
        boot_id: connection.query_row(boot_id, [], |row| row.get(0))?,
        offset: meta(connection, "boot_offset")?,
        seen_at: meta(connection, "seen_at")?.max(newest.unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_requests_full_syncs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("semel.db");
        drop(crate::SqliteStore::open(&path).unwrap());
        for connection in [connect(&path).unwrap(), reader(&path).unwrap()] {
            for pragma in ["fullfsync", "checkpoint_fullfsync"] {
                let on = connection.pragma_query_value(None, pragma, |row| row.get::<_, bool>(0));
                assert!(on.unwrap(), "{pragma}");
            }
        }
    }
}
