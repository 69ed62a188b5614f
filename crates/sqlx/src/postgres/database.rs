//! The database behind a pool of connections, and its transactions.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use async_trait::async_trait;
use semel::{
    core::{Batch, Fenced, RecordId, StoreError},
    joint::{Begun, Database, Entry, JointStore, Seen},
};
use sqlx::{AssertSqlSafe, Error, PgConnection, PgPool, Postgres, Transaction, error::ErrorKind};

use super::{TABLE, rows};
use crate::{
    apart::{Kept, apart},
    error::store_error,
};

/// The lock under which the table is made: two programs that start at once would both make it.
const MAKING: i64 = 0x5e3e_1000_7ab1_e000;

/// A store whose records are rows of `semel_joint`.
pub type PgStore = JointStore<PgDatabase>;

/// Your own database, by the pool that your program has anyway.
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
    pub fn store(self) -> PgStore {
        JointStore::new(self)
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }
}

/// Makes the [table](super::TABLE) where the pool connects to, if it is not there.
///
/// # Errors
///
/// If the database cannot be reached, or the role may not make it.
pub async fn create_table(pool: &PgPool) -> Result<(), StoreError> {
    let sql = format!("SELECT pg_advisory_xact_lock({MAKING}); {TABLE}");
    // Several statements at once are one transaction.
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(pool).await.map(drop).map_err(store_error)
}

/// An open transaction, through which an operation writes: a connection, as sqlx has it. What is
/// begun on it is a savepoint.
///
/// Whoever drops it undoes everything.
pub struct PgTransaction {
    transaction: Transaction<'static, Postgres>,
    held: rows::Held,
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
    async fn begin_here(&self, id: &RecordId) -> Result<Begun<PgTransaction>, StoreError> {
        let mut transaction = self.pool.begin().await.map_err(store_error)?;
        let begun = match rows::begin(&mut transaction, id).await.map_err(store_error)? {
            Begun::Free { transaction: held, fence } => {
                return Ok(Begun::Free { transaction: PgTransaction { transaction, held }, fence });
            }
            Begun::Running => Begun::Running,
            Begun::Recorded(found) => Begun::Recorded(found),
        };
        transaction.rollback().await.map_err(store_error)?;
        Ok(begun)
    }
}

async fn commit(transaction: PgTransaction, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
    let PgTransaction { mut transaction, held } = transaction;
    if let Err(error) = rows::record(&mut transaction, entry, held).await {
        // An error need not be told: who is not heard of is rolled back.
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

    async fn begin(&self, id: &RecordId) -> Result<Begun<PgTransaction>, StoreError> {
        let (database, id) = (self.clone(), id.clone());
        apart(async move { database.begin_here(&id).await }).await
    }

    async fn commit(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let kept = Kept::of(entry);
        apart(async move { commit(transaction, &kept.entry()).await }).await
    }

    async fn roll_back(&self, transaction: PgTransaction) {
        let _ = transaction.transaction.rollback().await;
    }

    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::look(&mut connection, id).await.map_err(store_error)
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::sweep(&mut connection, limit).await.map_err(store_error)
    }
}

/// Whether a record was refused because there is one, or because the transaction is another one.
pub(super) fn refused(error: &Error) -> Option<Fenced> {
    let kind = error.as_database_error()?.kind();
    matches!(kind, ErrorKind::UniqueViolation | ErrorKind::NotNullViolation).then_some(Fenced::Lost)
}

/// Whether a commit that failed has not happened: the server refused it, and does not say that it
/// lost the connection, does not know, is about to end or has failed itself.
fn is_certain(error: &Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| !["08", "40003", "57", "58"].iter().any(|lost| code.starts_with(lost)))
}
