//! The database behind a pool of connections, and its transactions.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use async_trait::async_trait;
use semel::{
    core::{Batch, Fenced, RecordId, StoreError},
    transactional::{
        BeginResult, Database, Entry, RecordLookup, TransactionalStore,
        sql::postgres::CREATE_TABLE_LOCK,
    },
};
use sqlx::{AssertSqlSafe, Error, PgConnection, PgPool, Postgres, Transaction, error::ErrorKind};

use super::{TABLE, rows};
use crate::{
    detached::{DetachedEntry, run_detached},
    error::store_error,
};

/// A store whose records are rows of `semel_transactional`.
pub type PgTransactionalStore = TransactionalStore<PgDatabase>;

/// Your own database, through the pool of your program.
#[derive(Clone, Debug)]
pub struct PgDatabase {
    pool: PgPool,
}

impl PgDatabase {
    /// The database that this pool connects to. It must have the [table](super::TABLE).
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> PgTransactionalStore {
        TransactionalStore::new(self)
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }
}

/// Creates the [table](super::TABLE) if it is missing.
///
/// # Errors
///
/// If the database cannot be reached, or the role may not create it.
pub async fn create_table(pool: &PgPool) -> Result<(), StoreError> {
    let sql = format!("SELECT pg_advisory_xact_lock({CREATE_TABLE_LOCK}); {TABLE}");
    // Several statements at once are one transaction.
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop).map_err(store_error)
}

/// An open transaction, through which an operation writes: a connection of sqlx. A transaction that
/// begins on it is a savepoint.
///
/// Dropping it rolls everything back.
pub struct PgTransaction {
    transaction: Transaction<'static, Postgres>,
    held: rows::OperationLock,
}

impl Deref for PgTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.transaction
    }
}

impl DerefMut for PgTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").field("own", &self.held.own).finish_non_exhaustive()
    }
}

impl PgDatabase {
    async fn begin_here(&self, id: &RecordId) -> Result<BeginResult<PgTransaction>, StoreError> {
        let mut transaction = self.pool.begin().await.map_err(store_error)?;
        let begun = match rows::begin(&mut transaction, id).await.map_err(store_error)? {
            BeginResult::Free { transaction: held, fence } => {
                return Ok(BeginResult::Free {
                    transaction: PgTransaction { transaction, held },
                    fence,
                });
            }
            BeginResult::Running => BeginResult::Running,
            BeginResult::Recorded(found) => BeginResult::Recorded(found),
        };
        transaction.rollback().await.map_err(store_error)?;
        Ok(begun)
    }
}

async fn commit(transaction: PgTransaction, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
    let PgTransaction { mut transaction, held } = transaction;
    if let Err(error) = rows::record(&mut transaction, entry, held).await {
        // An error can be ignored: the server rolls back when the connection ends.
        let _ = transaction.rollback().await;
        return refused(&error).ok_or_else(|| store_error(error));
    }
    match transaction.commit().await {
        Ok(()) => Ok(Fenced::Applied),
        Err(error) if is_certain(&error) => Err(store_error(error)),
        Err(error) => Err(store_error(error).effect_unknown()),
    }
}

#[async_trait]
impl Database for PgDatabase {
    type Transaction = PgTransaction;

    async fn begin(&self, id: &RecordId) -> Result<BeginResult<PgTransaction>, StoreError> {
        let (database, id) = (self.clone(), id.clone());
        run_detached(async move { database.begin_here(&id).await }).await
    }

    async fn commit(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let entry = DetachedEntry::of(entry);
        run_detached(async move { commit(transaction, &entry.entry()).await }).await
    }

    async fn roll_back(&self, transaction: PgTransaction) {
        let _ = transaction.transaction.rollback().await;
    }

    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::lookup(&mut connection, id).await.map_err(store_error)
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::sweep(&mut connection, limit).await.map_err(store_error)
    }
}

/// Whether a record was refused because one exists, or because this is another transaction.
pub(super) fn refused(error: &Error) -> Option<Fenced> {
    let kind = error.as_database_error()?.kind();
    matches!(kind, ErrorKind::UniqueViolation | ErrorKind::NotNullViolation).then_some(Fenced::Lost)
}

/// Whether a failed commit certainly has no effect: the server refused it, and the error is neither
/// a lost connection, an unknown completion, a shutdown nor a system error.
fn is_certain(error: &Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| !["08", "40003", "57", "58"].iter().any(|lost| code.starts_with(lost)))
}
