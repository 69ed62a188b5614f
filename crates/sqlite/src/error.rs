//! Translates SQLite's errors into kinds and advice for operators.

use std::{error::Error, fmt, path::Path};

use rusqlite::ErrorCode;
use semel_core::{StoreError, StoreErrorKind};

/// The cause of an error: there is no store in the file, and none was to be created.
#[derive(Debug)]
#[non_exhaustive]
pub struct NoStore;

impl NoStore {
    /// Whether this is why opening a store failed.
    #[must_use]
    pub fn is_cause_of(error: &StoreError) -> bool {
        error.source().is_some_and(|source| source.is::<Self>())
    }
}

impl fmt::Display for NoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no store in the file")
    }
}

impl Error for NoStore {}

/// The kind and the advice for an error of SQLite.
pub(crate) fn explain(error: &rusqlite::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Corrupt, Full, ReadOnly, TooLarge, Unavailable};
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Full, "the disk is full: free space, nothing else is needed"),
        Some(ErrorCode::ReadOnly) => {
            (ReadOnly, "the file or its folder cannot be written: check owner and permissions")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            Unavailable,
            "the file cannot be opened: check that its folder exists and that both may be written",
        ),
        Some(ErrorCode::DatabaseCorrupt) => {
            (Corrupt, "the file is damaged: stop, keep a copy of it and restore a backup")
        }
        Some(ErrorCode::NotADatabase) => {
            (Corrupt, "the file is not a SQLite database, or is damaged: check the path")
        }
        Some(ErrorCode::TooBig) => (TooLarge, "the answer is too large for the file"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Unavailable, "another process keeps the file locked: find it and stop it")
        }
        Some(ErrorCode::SystemIoFailure) => {
            (Unavailable, "the disk failed to read or write: look at the system's log")
        }
        _ => (Unavailable, "SQLite refused the operation"),
    }
}

/// The error of an operation without effect.
pub(crate) fn store_error(path: &Path, error: rusqlite::Error) -> StoreError {
    let (kind, advice) = explain(&error);
    StoreError::new(kind, format!("{}: {advice} ({error})", path.display())).because(error)
}

/// A value in the file that Semel never writes.
pub(crate) fn damaged(what: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(format!("{what} in the file cannot be read")))
}
