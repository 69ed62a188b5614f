//! Database files with many records. A file is filled once through the store and reused. Benchmarks
//! that write get a copy.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, OpenFlags};
use semel_sqlite::SqliteStore;
use tempfile::TempDir;

use crate::{
    load::{self, Subject},
    measure::as_f64,
    settings::{Settings, progress, progress_end},
};

/// Number of records in the smaller file.
pub(crate) fn small_record_count(settings: &Settings) -> usize {
    settings.or_quick(1_000_000, 20_000)
}

/// Number of records in the larger file.
pub(crate) fn large_record_count(settings: &Settings) -> usize {
    settings.or_quick(5_000_000, 60_000)
}

/// Creates a folder beside the filled files. It is removed on drop.
pub(crate) fn scratch_folder(settings: &Settings) -> anyhow::Result<TempDir> {
    fs::create_dir_all(&settings.dir)?;
    Ok(tempfile::Builder::new().prefix("scratch-").tempdir_in(&settings.dir)?)
}

/// Returns the file with `count` records; fills it if it is missing. It must not be written to.
pub(crate) async fn filled_file(settings: &Settings, count: usize) -> anyhow::Result<PathBuf> {
    let work = scratch_folder(settings)?;
    let version = schema_version(&work.path().join("version.db"))?;
    let path = settings.dir.join(format!("filled-v{version}-{count}.db"));
    if path.exists() {
        return Ok(path);
    }
    let making = work.path().join("filling.db");
    let store: Arc<dyn Subject> = Arc::new(SqliteStore::open(&making)?);
    let filling = load::fill(&store, count, |done| {
        let percent = as_f64(done) * 100.0 / as_f64(count);
        progress(&format!("filling a file of {count} records: {percent:.0} %"));
    });
    filling.await?;
    drop(store);
    progress_end();
    fs::rename(&making, &path)?;
    Ok(path)
}

/// Copies a filled file and syncs the copy, so that its write-back does not disturb a measurement.
pub(crate) fn copy(filled: &Path, to: &Path) -> anyhow::Result<()> {
    progress(&format!("copying {}", filled.display()));
    fs::copy(filled, to)?;
    File::open(to)?.sync_all()?;
    progress_end();
    Ok(())
}

/// Runs an SQL query that returns one number, on a connection of its own.
pub(crate) fn query_number(path: &Path, sql: &str) -> anyhow::Result<i64> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// The schema version that this build of the store writes. Files of another version are not reused.
fn schema_version(path: &Path) -> anyhow::Result<i64> {
    drop(SqliteStore::open(path)?);
    query_number(path, "PRAGMA user_version")
}
