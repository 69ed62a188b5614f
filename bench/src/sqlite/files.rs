//! Files of many records: filled once through the store itself, kept, and copied for parts that
//! change them.

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

/// How many records the smaller of the filled files has.
pub(crate) fn small(settings: &Settings) -> usize {
    settings.or_quick(1_000_000, 20_000)
}

/// How many records the larger one has.
pub(crate) fn large(settings: &Settings) -> usize {
    settings.or_quick(5_000_000, 60_000)
}

/// A folder beside the kept files, removed when it is dropped.
pub(crate) fn scratch(settings: &Settings) -> anyhow::Result<TempDir> {
    fs::create_dir_all(&settings.dir)?;
    Ok(tempfile::Builder::new().prefix("scratch-").tempdir_in(&settings.dir)?)
}

/// The kept file of `count` records, filled now if it is missing. It must not be written to.
pub(crate) async fn kept(settings: &Settings, count: usize) -> anyhow::Result<PathBuf> {
    let work = scratch(settings)?;
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

/// A synced copy of a kept file, so that its write-back does not disturb a measurement.
pub(crate) fn copy(kept: &Path, to: &Path) -> anyhow::Result<()> {
    progress(&format!("copying {}", kept.display()));
    fs::copy(kept, to)?;
    File::open(to)?.sync_all()?;
    progress_end();
    Ok(())
}

/// A number that an SQL query gives, read beside the store.
pub(crate) fn number(path: &Path, sql: &str) -> anyhow::Result<i64> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// The format that this build of the store writes: files of another one are not used again.
fn schema_version(path: &Path) -> anyhow::Result<i64> {
    drop(SqliteStore::open(path)?);
    number(path, "PRAGMA user_version")
}
