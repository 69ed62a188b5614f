//! Classification of PostgreSQL's errors, and messages for operators.

use std::{error::Error as _, fmt};

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

/// A URL that cannot be used, and why. It never shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresUrlError(pub(crate) String);

impl fmt::Display for PostgresUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PostgresUrlError {}

impl From<PostgresUrlError> for StoreError {
    fn from(error: PostgresUrlError) -> Self {
        Self::new(StoreErrorKind::Unavailable, error.0.clone()).because(error)
    }
}

/// The error that failed a whole batch.
#[derive(Debug)]
pub(crate) struct StatementFailure {
    pub(crate) error: Error,
    pub(crate) class: ErrorClass,
}

impl From<Error> for StatementFailure {
    fn from(error: Error) -> Self {
        Self { class: ErrorClass::of(&error), error }
    }
}

/// What an error means for the connection and for the statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// The server rejected the statement and rolled its transaction back. The connection is usable.
    Rejected,
    /// The same, and a retry may succeed.
    Retryable,
    /// The server rejected the statement, and will reject every other on this connection.
    ConnectionUnusable,
    /// The connection is gone; the statement may have taken effect.
    ConnectionLost,
}

impl ErrorClass {
    pub(crate) fn of(error: &Error) -> Self {
        let Some(db) = error.as_db_error() else {
            // A statement whose parameters could not be encoded was not sent.
            return if is_lost(error) { Self::ConnectionLost } else { Self::Rejected };
        };
        if db.parsed_severity() != Some(Severity::Error) || db.code().code().starts_with("08") {
            return Self::ConnectionLost;
        }
        match *db.code() {
            // PostgreSQL does not send it. Databases with its protocol do, for a commit whose
            // result they do not know.
            SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => Self::ConnectionLost,
            SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
                Self::Retryable
            }
            // The server became read-only, or the session lost its prepared statements.
            SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::INVALID_SQL_STATEMENT_NAME
            | SqlState::DUPLICATE_PSTATEMENT
            | SqlState::FEATURE_NOT_SUPPORTED => Self::ConnectionUnusable,
            _ => Self::Rejected,
        }
    }
}

fn is_lost(error: &Error) -> bool {
    let io = |source: &(dyn std::error::Error + 'static)| source.is::<std::io::Error>();
    error.is_closed() || error.source().is_some_and(io) || error.source().is_none()
}

/// The error of an operation that had no effect.
pub(crate) fn store_error(error: Error) -> StoreError {
    let (kind, advice) = error
        .as_db_error()
        .map_or_else(|| (StoreErrorKind::Unavailable, "the database cannot be reached"), explain);
    StoreError::new(kind, format!("{advice} ({})", describe(&error))).because(error)
}

/// The message of the server with its SQLSTATE, or the cause of a connection error.
pub(crate) fn describe(error: &Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(db), _) => format!("{}, SQLSTATE {}", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

fn explain(db: &DbError) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Corrupt, Full, ReadOnly, Unavailable};
    match *db.code() {
        SqlState::DISK_FULL => (Full, "the database's disk is full: free space"),
        SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ReadOnly, "the server is read-only: it is a standby, or set to read-only")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (ReadOnly, "the role lacks a privilege: run `semel doctor` for the missing grant")
        }
        // Temporary: the size of the answer was checked before.
        SqlState::PROGRAM_LIMIT_EXCEEDED | SqlState::OUT_OF_MEMORY => {
            (Unavailable, "the database is out of memory, or its notification queue is full")
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            (Corrupt, "the tables are not those of this store: run `semel migrate`")
        }
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
            (Corrupt, "the database is corrupt: stop it, and restore a backup")
        }
        SqlState::TOO_MANY_CONNECTIONS => {
            (Unavailable, "the database has no connection left: raise max_connections")
        }
        SqlState::LOCK_NOT_AVAILABLE => {
            (Unavailable, "another transaction holds a lock on the record: see pg_locks")
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (Unavailable, "the database rejects the login: check user and password")
        }
        _ => (Unavailable, "the database rejected the operation"),
    }
}

/// A value in the table that Semel never writes.
pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("{what} in the table cannot be read"))
}

/// The error of a command that was waiting when the store was closed.
pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store has been closed")
}
