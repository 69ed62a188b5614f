//! A transaction that the user has opened.

use std::{
    future::{Future, ready},
    ops::Deref,
    path::Path,
};

use rusqlite::{Connection, ErrorCode, ffi};
use semel::transactional::{BeginResult, Entry, UserTransaction};
use semel_core::{Fenced, RecordId, StoreError};

use super::{connection_thread::failure, rows};
use crate::error::store_error;

/// A transaction of your own, for
/// [`InTransaction::run_now`](semel::transactional::InTransaction::run_now).
///
/// ```
/// use rusqlite::Connection;
/// use semel::{core::{Caller, Key, Scope}, transactional::InTransaction};
/// use semel_sqlite::transactional::{self, SqliteUserTransaction};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = Connection::open_in_memory()?;
/// connection.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (9)")?;
/// transactional::create_table(&connection)?;
///
/// for _ in 0..3 {
///     let transaction = connection.transaction()?;
///     let (scope, caller) = (Scope::new("shipments")?, Caller::new("shop-3")?);
///     let left = InTransaction::new(scope, caller, Key::new("o-17")?)
///         .fingerprint(&("o-17", 2))
///         .run_now(&mut SqliteUserTransaction::of(&transaction), |tx| {
///             let sql = "UPDATE stock SET pieces = pieces - 2 RETURNING pieces";
///             Ok(tx.query_row(sql, [], |row| row.get::<_, i64>(0))?)
///         })?;
///     transaction.commit()?;
///     assert_eq!(left.into_value(), Some(7));
/// }
/// # Ok(())
/// # }
/// ```
///
/// It takes the file's only write lock, if the transaction does not have it yet. While another
/// connection has the lock, it waits for the connection's busy timeout. Then the outcome is
/// [`InProgress`](semel::Outcome::InProgress), whatever the other connection does.
#[derive(Clone, Copy, Debug)]
pub struct SqliteUserTransaction<'a>(&'a Connection);

impl<'a> SqliteUserTransaction<'a> {
    /// Records are added to this transaction: a [`rusqlite::Transaction`], or the connection on
    /// which one was begun otherwise.
    #[must_use]
    pub const fn of(transaction: &'a Connection) -> Self {
        Self(transaction)
    }
}

impl Deref for SqliteUserTransaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0
    }
}

impl UserTransaction for SqliteUserTransaction<'_> {
    fn take(
        &mut self,
        id: &RecordId,
    ) -> impl Future<Output = Result<BeginResult<()>, StoreError>> + Send {
        ready(take(self, id))
    }

    fn mark(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "SAVEPOINT semel_transactional"))
    }

    fn keep(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "RELEASE semel_transactional"))
    }

    fn undo(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "ROLLBACK TO semel_transactional; RELEASE semel_transactional"))
    }

    fn record(
        &mut self,
        entry: &Entry<'_>,
    ) -> impl Future<Output = Result<Fenced, StoreError>> + Send {
        ready(rows::record(self, entry).map_err(|error| explained(self, error)))
    }
}

fn take(connection: &Connection, id: &RecordId) -> Result<BeginResult<()>, StoreError> {
    let taken = lock(connection, id).and_then(|()| rows::lookup(connection, id));
    match taken {
        Ok(Some(found)) => Ok(BeginResult::Recorded(found)),
        Ok(None) => {
            let fence = rows::next_fence().map_err(|error| explained(connection, error))?;
            Ok(BeginResult::Free { transaction: (), fence })
        }
        Err(error) if is_locked(&error) => Ok(BeginResult::Running),
        Err(error) => Err(explained(connection, error)),
    }
}

/// Takes the write lock by deleting the record if it is past its retention. No other connection can
/// write before the transaction ends.
fn lock(connection: &Connection, id: &RecordId) -> rusqlite::Result<()> {
    if connection.is_autocommit() {
        return Err(failure(ffi::SQLITE_MISUSE, "no transaction is open: begin one"));
    }
    rows::drop_expired(connection, id)
}

/// Whether another connection has the write lock. A transaction with an outdated snapshot
/// (`SQLITE_BUSY_SNAPSHOT`) can never write, however long it waits.
fn is_locked(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
        && error.sqlite_error().map(|error| error.extended_code) != Some(ffi::SQLITE_BUSY_SNAPSHOT)
}

fn batch(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection.execute_batch(sql).map_err(|error| explained(connection, error))
}

fn explained(connection: &Connection, error: rusqlite::Error) -> StoreError {
    store_error(Path::new(connection.path().unwrap_or(":memory:")), error)
}
