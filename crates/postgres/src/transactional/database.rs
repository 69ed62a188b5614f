//! Records in the user's database, through a pool of connections.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool, PoolError};
use semel::transactional::{
    BeginResult, Database, Entry, RecordLookup, TransactionalStore,
    sql::postgres::CREATE_TABLE_LOCK,
};
use semel_core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind};
use tokio::{sync::OnceCell, time::timeout};
use tokio_postgres::{Error, Row};
use tracing::warn;

use super::{
    PgTransaction, TABLE,
    pipeline::{self, BeginReply},
    row::{self, LockedLookup, RUNNING, RecordKey, RecordValues, SqlParameter, TypedSql},
    statements::{TABLE_NAME, TableStatements},
    transaction::PrepareMode,
};
use crate::error::{ErrorClass, corrupt, describe, store_error};

/// The timeout for a connection of the pool, and for the lookup of the table.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// A store whose records are rows of `semel_transactional`.
pub type PgTransactionalStore = TransactionalStore<PgDatabase>;

/// Your own database, through the pool of your program.
#[derive(Clone)]
pub struct PgDatabase {
    pool: Pool,
    statements: Arc<OnceCell<Arc<TableStatements>>>,
    prepare: PrepareMode,
}

impl PgDatabase {
    /// The database that this pool connects to. It must have the [table](super::TABLE), which the
    /// first operation looks up by its unqualified name.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, statements: Arc::default(), prepare: PrepareMode::Once }
    }

    /// Prepares no statement under a name. A pooler in transaction mode needs this: behind it, the
    /// name may belong to a statement of another client. Each operation then takes several times
    /// as much of the server's time for its record.
    #[must_use]
    pub const fn with_unnamed_statements(mut self) -> Self {
        self.prepare = PrepareMode::Each;
        self
    }

    /// The store in this database, for the engine.
    #[must_use]
    pub fn store(self) -> PgTransactionalStore {
        TransactionalStore::new(self)
    }

    async fn connection(&self) -> Result<PgTransaction, StoreError> {
        let object = connection(&self.pool).await?;
        let statements = match self.statements.get() {
            Some(statements) => statements,
            None => Box::pin(self.statements.get_or_try_init(|| statements(&object))).await?,
        };
        Ok(PgTransaction::new(object, Arc::clone(statements), self.prepare))
    }
}

/// Looks the table up, and makes the statements for it.
async fn statements(client: &Object) -> Result<Arc<TableStatements>, StoreError> {
    let hangs = |_| {
        let message = "no reply from the database when looking up the table of records";
        StoreError::new(StoreErrorKind::Unavailable, message)
    };
    let found =
        timeout(CONNECTION_TIMEOUT, client.query_typed(TABLE_NAME, &[])).await.map_err(hangs)?;
    let found = found.map_err(store_error)?;
    let name = found.first().and_then(|row| row.try_get("name").ok());
    name.map(|name| Arc::new(TableStatements::of(name)))
        .ok_or_else(|| corrupt("the name of a table"))
}

async fn connection(pool: &Pool) -> Result<Object, StoreError> {
    let busy = || {
        let message = "every connection of the pool is in use: try again later";
        StoreError::new(StoreErrorKind::Busy, message)
    };
    match timeout(CONNECTION_TIMEOUT, pool.get()).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(PoolError::Backend(error))) => Err(store_error(error)),
        Err(_) | Ok(Err(PoolError::Timeout(_))) => Err(busy()),
        Ok(Err(error)) => {
            let message = "the pool provides no connection";
            Err(StoreError::new(StoreErrorKind::Unavailable, message).because(error))
        }
    }
}

/// Creates the [table](super::TABLE) in the database of the pool, if it does not exist.
///
/// # Errors
///
/// If the database cannot be reached, or the role may not create it.
pub async fn create_table(pool: &Pool) -> Result<(), StoreError> {
    // Several statements in one message are one transaction.
    let sql = format!("SELECT pg_advisory_xact_lock({CREATE_TABLE_LOCK}); {TABLE}");
    connection(pool).await?.batch_execute(&sql).await.map_err(store_error)
}

impl PgTransaction {
    async fn query_rows(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.try_query_rows(sql, parameters).await.map_err(store_error)
    }

    /// Reads the state of a record without taking its lock.
    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError> {
        let (record, read) = (RecordKey::of(id), &self.statements().read);
        let mut seen = row::read(&self.query_rows(read, &record.digest()).await?)?;
        if seen.is_none() {
            let rows = self.query_rows(&RUNNING, &record.lock()).await?;
            if rows.first().is_none_or(|row| row.try_get("running").unwrap_or(true)) {
                return Ok(RecordLookup::Running);
            }
            // A former holder of the lock may have committed since the record was read.
            seen = row::read(&self.query_rows(read, &record.digest()).await?)?;
        }
        Ok(seen.map_or(RecordLookup::Absent, RecordLookup::Recorded))
    }
}

impl PgDatabase {
    /// Begins on this connection; `again` rolls an open transaction back first.
    async fn begin_on(
        &self,
        client: PgTransaction,
        again: bool,
        id: &RecordId,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        let record = RecordKey::of(id);
        let reply = pipeline::begin(&client, again, &record).await.map_err(store_error)?;
        self.finish_begin(client, &record, reply).await
    }

    /// Turns the replies to the statements that begin into a result.
    async fn finish_begin(
        &self,
        client: PgTransaction,
        record: &RecordKey,
        mut reply: BeginReply,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        let mut held = row::held(&reply.lock)?;
        if held.is_some_and(|held| !held.current) {
            reply = pipeline::begin_locked(&client, record).await.map_err(store_error)?;
            held = row::held(&reply.lock)?;
        }
        let transaction_id = held.map_or(0, |held| held.transaction_id);
        let fence = match row::taken(held, &reply.record)? {
            LockedLookup::Free(fence) => fence,
            LockedLookup::Expired(fence) => {
                client.query_rows(&client.statements().drop, &record.digest()).await?;
                fence
            }
            LockedLookup::Running => {
                self.roll_back(client).await;
                return Ok(BeginResult::Running);
            }
            LockedLookup::Recorded(found) => {
                self.roll_back(client).await;
                return Ok(BeginResult::Recorded(found));
            }
        };
        Ok(BeginResult::Free { transaction: client.numbered(transaction_id), fence })
    }

    /// The result of a commit.
    async fn ended(
        &self,
        transaction: PgTransaction,
        ended: Result<(), Error>,
    ) -> Result<Fenced, StoreError> {
        let Err(error) = ended else {
            transaction.end();
            return Ok(Fenced::Applied);
        };
        if ErrorClass::of(&error) == ErrorClass::ConnectionLost {
            return Err(lost(&error));
        }
        warn!(error = describe(&error), "cannot record an operation; rolling it back");
        // An unusable connection must not go back to the pool.
        if ErrorClass::of(&error) != ErrorClass::ConnectionUnusable {
            self.roll_back(transaction).await;
        }
        Ok(Fenced::Lost)
    }
}

#[async_trait]
impl Database for PgDatabase {
    type Transaction = PgTransaction;

    async fn begin(&self, id: &RecordId) -> Result<BeginResult<PgTransaction>, StoreError> {
        self.begin_on(self.connection().await?, false, id).await
    }

    async fn begin_again(
        &self,
        transaction: PgTransaction,
        id: &RecordId,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        self.begin_on(transaction, true, id).await
    }

    async fn commit(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let values = RecordValues::of(entry, transaction.transaction_id());
        let ended = pipeline::commit(&transaction, &values).await;
        self.ended(transaction, ended).await
    }

    async fn roll_back(&self, transaction: PgTransaction) {
        if transaction.batch_execute("ROLLBACK").await.is_ok() {
            transaction.end();
        }
    }

    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError> {
        let client = self.connection().await?;
        let seen = client.look_up(id).await?;
        client.end();
        Ok(seen)
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let client = self.connection().await?;
        let limit = i64::from(limit);
        let sweep = &client.statements().sweep;
        let swept = client.execute_typed(&sweep.text, &sweep.typed(&[&limit])).await;
        let done = swept.map_err(store_error)?;
        client.end();
        let done = u32::try_from(done).unwrap_or(u32::MAX);
        Ok(Batch::new(done, i64::from(done) >= limit))
    }
}

fn lost(error: &Error) -> StoreError {
    let message = format!("the connection was lost at its commit ({})", describe(error));
    StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
}

impl fmt::Debug for PgDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgDatabase").field("pool", &self.pool.status()).finish()
    }
}
