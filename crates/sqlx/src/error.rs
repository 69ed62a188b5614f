//! What errors of sqlx mean to a store.

use semel::core::{StoreError, StoreErrorKind};
use sqlx::Error;

/// The error of something that left nothing behind.
#[expect(clippy::wildcard_enum_match_arm, reason = "sqlx may name more of them")]
pub(crate) fn store_error(error: Error) -> StoreError {
    let (kind, message) = match &error {
        Error::PoolTimedOut => {
            let message = "every connection of the pool is in use: try again later".to_owned();
            (StoreErrorKind::Busy, message)
        }
        Error::Database(said) if is_locked(&error) => {
            let message = format!("somebody else keeps the file locked: try again later ({said})");
            (StoreErrorKind::Busy, message)
        }
        Error::Decode(_) | Error::ColumnDecode { .. } | Error::ColumnNotFound(_) => {
            (StoreErrorKind::Corrupt, format!("what was read is not a record: {error}"))
        }
        _ => (StoreErrorKind::Unavailable, format!("the database failed: {error}")),
    };
    StoreError::new(kind, message).because(error)
}

/// A value in the table that Semel never writes.
pub(crate) fn damaged(what: &str) -> Error {
    Error::Decode(format!("{what} cannot be read").into())
}

/// Whether SQLite was told to wait for somebody else who writes. One that has read what was changed
/// since (`SQLITE_BUSY_SNAPSHOT`) can never write, however long it waits.
pub(crate) fn is_locked(error: &Error) -> bool {
    /// `SQLITE_BUSY`; PostgreSQL has codes of five characters.
    const BUSY: &str = "5";
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == BUSY)
}
