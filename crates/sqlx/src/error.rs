//! Translates errors of sqlx into store errors.

use semel::core::{StoreError, StoreErrorKind};
use sqlx::Error;

/// The error of an operation without effect.
#[expect(clippy::wildcard_enum_match_arm, reason = "sqlx may name more of them")]
pub(crate) fn store_error(error: Error) -> StoreError {
    let (kind, message) = match &error {
        Error::PoolTimedOut => {
            let message = "every connection of the pool is in use: try again later".to_owned();
            (StoreErrorKind::Busy, message)
        }
        Error::Database(refused) if is_locked(&error) => {
            let message =
                format!("another connection keeps the file locked: try again later ({refused})");
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

/// Whether another connection has SQLite's write lock. A transaction with an outdated snapshot
/// (`SQLITE_BUSY_SNAPSHOT`) can never write, however long it waits.
pub(crate) fn is_locked(error: &Error) -> bool {
    /// `SQLITE_BUSY`; PostgreSQL has codes of five characters.
    const BUSY: &str = "5";
    error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == BUSY)
}
