//! Records in a transaction that the user has opened.

use std::{fmt, ops::Deref};

use semel::transactional::{BeginResult, Entry, UserTransaction};
use semel_core::{Fenced, RecordId, StoreError};
use tokio_postgres::{Error, Row, Transaction, error::SqlState};

use super::row::{
    self, DROP, HeldLock, LOCK, LockedLookup, READ, RECORD, RecordKey, RecordValues, SqlParameter,
    TypedSql,
};
use crate::error::store_error;

/// A transaction of your own, for [`InTransaction`](semel::transactional::InTransaction).
///
/// ```no_run
/// use semel::{Outcome, core::{Caller, Key, Scope}, transactional::InTransaction};
/// use semel_postgres::transactional::PgUserTransaction;
/// use tokio_postgres::Client;
///
/// # async fn ship(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// let (scope, caller) = (Scope::new("shipments")?, Caller::new("shop-3")?);
/// let shipped = InTransaction::new(scope, caller, Key::new("o-17")?)
///     .fingerprint(&("o-17", 2))
///     .run(&mut PgUserTransaction::of(&transaction), async |tx: &mut PgUserTransaction<'_>| {
///         let sql = "UPDATE stock SET pieces = pieces - 2 WHERE id = 17 RETURNING pieces";
///         Ok(tx.query_one(sql, &[]).await?.get::<_, i64>(0))
///     })
///     .await?;
/// transaction.commit().await?;
/// if let Outcome::Ran(left) | Outcome::Replayed(left) = shipped {
///     println!("{left} pieces were left then");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Isolation
///
/// Use `read committed`, which is the default of PostgreSQL. Above it the snapshot of your
/// transaction is older than the lock of the operation, and does not show an operation that another
/// transaction has committed since then. Such an operation runs a second time; then the primary key
/// rejects its record, and everything that it wrote is rolled back. Effects outside of the database
/// stay.
pub struct PgUserTransaction<'a> {
    transaction: &'a Transaction<'a>,
    held: HeldLock,
}

impl<'a> PgUserTransaction<'a> {
    /// Adds records to this transaction.
    #[must_use]
    pub const fn of(transaction: &'a Transaction<'a>) -> Self {
        Self { transaction, held: HeldLock::NONE }
    }

    async fn try_query_rows(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.transaction.query_typed(&sql.text, &sql.typed(parameters)).await
    }

    async fn query_rows(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.try_query_rows(sql, parameters).await.map_err(store_error)
    }
}

impl<'a> Deref for PgUserTransaction<'a> {
    type Target = Transaction<'a>;

    fn deref(&self) -> &Transaction<'a> {
        self.transaction
    }
}

impl UserTransaction for PgUserTransaction<'_> {
    async fn take(&mut self, id: &RecordId) -> Result<BeginResult<()>, StoreError> {
        let record = RecordKey::of(id);
        let held = row::held(&self.query_rows(&LOCK, &record.lock()).await?)?;
        self.held = held.unwrap_or(HeldLock::NONE);
        let fence = match row::taken(held, &self.query_rows(&READ, &record.digest()).await?)? {
            LockedLookup::Free(fence) => fence,
            LockedLookup::Expired(fence) => {
                self.query_rows(&DROP, &record.digest()).await?;
                fence
            }
            LockedLookup::Recorded(found) => return Ok(BeginResult::Recorded(found)),
            LockedLookup::Running => return Ok(BeginResult::Running),
        };
        Ok(BeginResult::Free { transaction: (), fence })
    }

    async fn mark(&mut self) -> Result<(), StoreError> {
        self.transaction.batch_execute("SAVEPOINT semel_transactional").await.map_err(store_error)
    }

    async fn keep(&mut self) -> Result<(), StoreError> {
        self.transaction
            .batch_execute("RELEASE SAVEPOINT semel_transactional")
            .await
            .map_err(store_error)
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        let undo =
            "ROLLBACK TO SAVEPOINT semel_transactional; RELEASE SAVEPOINT semel_transactional";
        self.transaction.batch_execute(undo).await.map_err(store_error)
    }

    async fn record(&mut self, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
        let values = RecordValues::of(entry, self.held.transaction_id);
        let table_oid: [SqlParameter<'_>; 1] = [&self.held.table_oid];
        match self.try_query_rows(&RECORD, &[&values.all()[..], &table_oid].concat()).await {
            Ok(_) => Ok(Fenced::Applied),
            Err(error) => match error.code() {
                Some(&SqlState::UNIQUE_VIOLATION | &SqlState::NOT_NULL_VIOLATION) => {
                    Ok(Fenced::Lost)
                }
                _ => Err(store_error(error)),
            },
        }
    }
}

impl fmt::Debug for PgUserTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgUserTransaction")
            .field("own", &self.held.transaction_id)
            .finish_non_exhaustive()
    }
}
