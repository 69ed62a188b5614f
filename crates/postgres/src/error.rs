//! What PostgreSQL's errors mean to someone who runs Semel.

use std::{error::Error as _, fmt};

use semel_core::{StoreError, StoreErrorKind};
use tokio_postgres::{
    Error,
    error::{DbError, Severity, SqlState},
};

/// A URL that cannot be used, and why. It never shows the URL, which may hold a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlError(pub(crate) String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UrlError {}

impl From<UrlError> for StoreError {
    fn from(error: UrlError) -> Self {
        Self::new(StoreErrorKind::Unavailable, error.0.clone()).because(error)
    }
}

/// What an error says about the connection and about the statement that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The server refused the statement and undid its transaction. The connection is fine.
    Refused,
    /// The same, and the same statement may well succeed when it is tried again.
    TryAgain,
    /// The server refused, and every statement on this connection will be refused.
    Unfit,
    /// The connection is gone; what was sent may have happened.
    Lost,
}

impl Verdict {
    pub(crate) fn of(error: &Error) -> Self {
        let Some(db) = error.as_db_error() else {
            // What could not even be encoded was not sent.
            return if is_lost(error) { Self::Lost } else { Self::Refused };
        };
        if db.parsed_severity() != Some(Severity::Error) || db.code().code().starts_with("08") {
            return Self::Lost;
        }
        match *db.code() {
            // PostgreSQL does not send it. Databases that speak its protocol do, for a commit whose
            // result they do not know.
            SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN => Self::Lost,
            SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => Self::TryAgain,
            // A server that no longer takes writes, and a session that is not what it was.
            SqlState::READ_ONLY_SQL_TRANSACTION
            | SqlState::INVALID_SQL_STATEMENT_NAME
            | SqlState::DUPLICATE_PSTATEMENT
            | SqlState::FEATURE_NOT_SUPPORTED => Self::Unfit,
            _ => Self::Refused,
        }
    }
}

fn is_lost(error: &Error) -> bool {
    let io = |source: &(dyn std::error::Error + 'static)| source.is::<std::io::Error>();
    error.is_closed() || error.source().is_some_and(io) || error.source().is_none()
}

/// The error of an operation that left nothing behind.
pub(crate) fn store_error(error: Error) -> StoreError {
    let (kind, advice) = error
        .as_db_error()
        .map_or_else(|| (StoreErrorKind::Unavailable, "the database cannot be reached"), explain);
    StoreError::new(kind, format!("{advice} ({})", said(&error))).because(error)
}

/// What the server said, or what befell the connection.
pub(crate) fn said(error: &Error) -> String {
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
            (ReadOnly, "this server takes no writes: it is a standby, or set to read only")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (ReadOnly, "the role may not do this: run `semel doctor` for the missing grant")
        }
        // Not the answer's fault, whose size was checked before: it is recorded once there is room.
        SqlState::PROGRAM_LIMIT_EXCEEDED | SqlState::OUT_OF_MEMORY => {
            (Unavailable, "the database is short of memory, or of room for notifications")
        }
        SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN | SqlState::INVALID_SCHEMA_NAME => {
            (Corrupt, "the tables are not those of this store: run `semel migrate`")
        }
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
            (Corrupt, "the database is damaged: stop, and restore a backup")
        }
        SqlState::TOO_MANY_CONNECTIONS => {
            (Unavailable, "the database has no connection left: raise max_connections")
        }
        SqlState::LOCK_NOT_AVAILABLE => {
            (Unavailable, "another transaction keeps the record locked: find it in pg_locks")
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (Unavailable, "the database does not let this role in: check user and password")
        }
        _ => (Unavailable, "the database refused the operation"),
    }
}

/// A value in the table that Semel never writes.
pub(crate) fn damaged(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("{what} in the table cannot be read"))
}

/// The store was closed while somebody asked.
pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store has been closed")
}
