//! A transaction that the user has opened.

use std::{
    future::{Future, ready},
    ops::Deref,
    path::Path,
};

use rusqlite::{Connection, ErrorCode, ffi};
use semel::joint::{Begun, Carrier, Entry};
use semel_core::{Fenced, RecordId, StoreError};

use super::{connection_thread::failure, rows};
use crate::error::store_error;

/// A transaction of your own, for [`Within::run_now`](semel::joint::Within::run_now).
///
/// ```
/// use rusqlite::Connection;
/// use semel::{core::{Caller, Key, Scope}, joint::Within};
/// use semel_sqlite::joint::{self, InTransaction};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut connection = Connection::open_in_memory()?;
/// connection.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (9)")?;
/// joint::create_table(&connection)?;
///
/// for _ in 0..3 {
///     let transaction = connection.transaction()?;
///     let left = Within::new(Scope::new("shipments")?, Caller::new("shop-3")?, Key::new("o-17")?)
///         .fingerprint(&("o-17", 2))
///         .run_now(&mut InTransaction::of(&transaction), |tx: &mut InTransaction<'_>| {
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
pub struct InTransaction<'a>(&'a Connection);

impl<'a> InTransaction<'a> {
    /// Records are added to this transaction: a [`rusqlite::Transaction`], or the connection on
    /// which one was begun otherwise.
    #[must_use]
    pub const fn of(transaction: &'a Connection) -> Self {
        Self(transaction)
    }
}

impl Deref for InTransaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.0
    }
}

impl Carrier for InTransaction<'_> {
    fn take(
        &mut self,
        id: &RecordId,
    ) -> impl Future<Output = Result<Begun<()>, StoreError>> + Send {
        ready(take(self, id))
    }

    fn mark(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "SAVEPOINT semel_joint"))
    }

    fn keep(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "RELEASE semel_joint"))
    }

    fn undo(&mut self) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(batch(self, "ROLLBACK TO semel_joint; RELEASE semel_joint"))
    }

    fn record(
        &mut self,
        entry: &Entry<'_>,
    ) -> impl Future<Output = Result<Fenced, StoreError>> + Send {
        ready(rows::record(self, entry).map_err(|error| explained(self, error)))
    }
}

fn take(connection: &Connection, id: &RecordId) -> Result<Begun<()>, StoreError> {
    let taken = lock(connection, id).and_then(|()| rows::lookup(connection, id));
    match taken {
        Ok(Some(found)) => Ok(Begun::Recorded(found)),
        Ok(None) => {
            let fence = rows::next_fence().map_err(|error| explained(connection, error))?;
            Ok(Begun::Free { transaction: (), fence })
        }
        Err(error) if is_locked(&error) => Ok(Begun::Running),
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
