//! Opening a file: what it must be, how it is set up, and how it is brought to the newest version.

use std::{fs::File, path::Path, sync::Arc};

use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior,
    config::DbConfig,
};
use semel_core::{StoreError, StoreErrorKind};

use crate::{
    clock::{Anchor, Clock, StoreClock},
    error::store_error,
    turn::PATIENCE,
};

/// `SEML`, in the header of every file of ours.
const APPLICATION_ID: i64 = 0x5345_4d4c;

/// One script per version, in order; a file is brought up by those it has not seen.
const MIGRATIONS: &[&str] = &[include_str!("../migrations/0001.sql")];

/// How hard a commit is pressed to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synchronous {
    /// A commit is on disk before it is acknowledged.
    Full,
    /// Never: shows in a test that the test can fail.
    Off,
}

/// Opens the connection that writes, and ties the store's clock to the file.
pub(crate) fn writer(
    path: &Path,
    clock: &Arc<dyn Clock>,
    synchronous: Synchronous,
) -> Result<(Connection, StoreClock), StoreError> {
    let sqlite = |error| store_error(path, error);
    let mut connection = connect(path)?;
    check_owner(path, &connection)?;
    connection
        .execute_batch(match synchronous {
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
    // Checkpoints are run by the writer, in small pieces and between batches.
    connection.execute_batch("PRAGMA wal_autocheckpoint = 0").map_err(sqlite)?;
    let clock = bring_up(&mut connection, clock).map_err(sqlite)?;
    // Waiting for other processes is done by turns from here on.
    connection.busy_timeout(std::time::Duration::ZERO).map_err(sqlite)?;
    Ok((connection, clock))
}

/// Opens a connection that only reads.
pub(crate) fn reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(|error| store_error(path, error))?;
    Ok(connection)
}

/// Creates the file for this user alone, since answers are in it; the log takes its permissions
/// from it. A file that is there keeps its own. It is not opened here: closing it again would drop
/// the locks of another connection in this process.
#[cfg(unix)]
fn create_private(path: &Path) {
    use std::os::unix::fs::OpenOptionsExt as _;
    // SQLite will say what is wrong if this fails.
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

#[cfg(not(unix))]
fn create_private(_: &Path) {}

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let sqlite = |error| store_error(path, error);
    create_private(path);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    if connection.is_readonly("main").map_err(sqlite)? {
        let message = format!(
            "{}: the file is read-only: make it and its folder writable for this user",
            path.display()
        );
        return Err(StoreError::new(StoreErrorKind::ReadOnly, message));
    }
    connection.busy_timeout(PATIENCE).map_err(sqlite)?;
    connection.set_prepared_statement_cache_capacity(48);
    // Plans never depend on bound values: else SQLite prepares a statement anew whenever it is bound
    // to another id, which took a third of the writer's time.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite)?;
    connection
        .execute_batch(
            "PRAGMA page_size = 4096; PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY",
        )
        .map_err(sqlite)?;
    Ok(connection)
}

/// The version that this program writes.
fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Refuses a file that is not ours, or is newer than this program, before anything is changed in
/// it.
fn check_owner(path: &Path, connection: &Connection) -> Result<(), StoreError> {
    let sqlite = |error| store_error(path, error);
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let application = number("PRAGMA application_id").map_err(sqlite)?;
    let version = number("PRAGMA user_version").map_err(sqlite)?;
    let objects = number("SELECT count(*) FROM sqlite_schema").map_err(sqlite)?;
    let newest = newest();
    let fresh = application == 0 && version == 0 && objects == 0;
    if !fresh && application != APPLICATION_ID {
        let message = format!(
            "{}: this is the database of another program; give Semel a file of its own",
            path.display()
        );
        return Err(StoreError::new(StoreErrorKind::Corrupt, message));
    }
    if version > newest {
        let message = format!(
            "{}: the file has format version {version}, this Semel knows versions up to {newest}: \
             run the newer Semel that wrote it",
            path.display()
        );
        return Err(StoreError::new(StoreErrorKind::Newer, message));
    }
    Ok(())
}

/// Runs the missing migrations and ties the clock, all or nothing. Of several processes that open a
/// new file at once, one does it and the others find it done.
fn bring_up(
    connection: &mut Connection,
    clock: &Arc<dyn Clock>,
) -> Result<StoreClock, rusqlite::Error> {
    let work = Transaction::new(connection, TransactionBehavior::Immediate)?;
    let version: i64 = work.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let seen = usize::try_from(version).unwrap_or(usize::MAX);
    for script in MIGRATIONS.iter().skip(seen) {
        work.execute_batch(script)?;
    }
    if seen < MIGRATIONS.len() {
        work.pragma_update(None, "application_id", APPLICATION_ID)?;
        work.pragma_update(None, "user_version", newest())?;
    }
    let (clock, anchor) = StoreClock::tie(Arc::clone(clock), &read_anchor(&work)?);
    if let Some(anchor) = anchor {
        let set = "UPDATE meta SET value = ?2 WHERE name = ?1";
        work.execute(set, ("boot_id", &anchor.boot_id))?;
        work.execute(set, ("boot_offset", anchor.offset))?;
        work.execute(set, ("seen_at", anchor.seen_at))?;
    }
    work.commit()?;
    Ok(clock)
}

fn read_anchor(connection: &Connection) -> Result<Anchor, rusqlite::Error> {
    let get = "SELECT value FROM meta WHERE name = ?1";
    let newest: Option<i64> = connection
        .query_row("SELECT claimed_at FROM claims ORDER BY id DESC LIMIT 1", [], |row| row.get(0))
        .optional()?;
    let seen_at: i64 = connection.query_row(get, ["seen_at"], |row| row.get(0))?;
    Ok(Anchor {
        boot_id: connection.query_row(get, ["boot_id"], |row| row.get(0))?,
        offset: connection.query_row(get, ["boot_offset"], |row| row.get(0))?,
        seen_at: seen_at.max(newest.unwrap_or_default()),
    })
}
