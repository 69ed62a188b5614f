//! The database behind a pool of connections.

use std::{fmt, future::poll_fn, pin::pin, task::Poll, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{Pool, PoolError};
use semel::joint::{Begun, Database, Entry, JointStore, Seen};
use semel_core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind};
use tokio::{join, time::timeout};
use tokio_postgres::{Error, Row, Statement};
use tracing::warn;

use super::{
    PgTransaction, TABLE,
    row::{self, DROP, LOCK, Name, Parameter, READ, RECORD, RUNNING, SWEEP, Sql, Taken, Values},
};
use crate::error::{Verdict, said, store_error};

/// How long a connection is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The lock under which the table is made: two programs that start at once would both make it.
const MAKING: i64 = 0x5e3e_1000_7ab1_e000;

/// A store whose records are rows of `semel_joint`.
pub type PgStore = JointStore<PgDatabase>;

/// Your own database, by the pool that your program has anyway.
#[derive(Clone)]
pub struct PgDatabase {
    pool: Pool,
}

impl PgDatabase {
    /// The database that this pool connects to. It must have the [table](super::TABLE).
    #[must_use]
    pub const fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> PgStore {
        JointStore::new(self)
    }

    async fn connection(&self) -> Result<PgTransaction, StoreError> {
        connection(&self.pool).await
    }
}

async fn connection(pool: &Pool) -> Result<PgTransaction, StoreError> {
    let busy = || {
        let message = "every connection of the pool is in use: try again later";
        StoreError::new(StoreErrorKind::Busy, message)
    };
    match timeout(PATIENCE, pool.get()).await {
        Ok(Ok(object)) => Ok(PgTransaction::new(object)),
        Ok(Err(PoolError::Backend(error))) => Err(store_error(error)),
        Err(_) | Ok(Err(PoolError::Timeout(_))) => Err(busy()),
        Ok(Err(error)) => {
            let message = "the pool gives no connection";
            Err(StoreError::new(StoreErrorKind::Unavailable, message).because(error))
        }
    }
}

/// Makes the [table](super::TABLE) where the pool connects to, if it is not there.
///
/// # Errors
///
/// If the database cannot be reached, or the role may not make it.
pub async fn create_table(pool: &Pool) -> Result<(), StoreError> {
    let client = connection(pool).await?;
    let sql = format!("BEGIN; SELECT pg_advisory_xact_lock({MAKING}); {TABLE}; COMMIT");
    client.batch_execute(&sql).await.map_err(store_error)?;
    client.end();
    Ok(())
}

impl PgTransaction {
    async fn prepared(&self, sql: &Sql) -> Result<Statement, StoreError> {
        let prepared = self.prepare_typed_cached(sql.text, sql.types);
        prepared.await.map_err(store_error)
    }

    async fn ask(&self, sql: &Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql).await?;
        self.query(&statement, parameters).await.map_err(store_error)
    }
}

impl PgDatabase {
    /// Begins on this connection, by what also ends there what was before.
    async fn begin_on(
        &self,
        client: PgTransaction,
        begin: &str,
        id: &RecordId,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        let name = Name::of(id);
        let (number, digest) = (name.lock(), name.digest());
        // One after the other: they are known, except on a new connection.
        let lock = client.prepared(&LOCK).await?;
        let read = client.prepared(&READ).await?;
        // One round trip for all, and a snapshot of its own for what is read.
        let (open, told, rows) = join!(
            biased;
            client.batch_execute(begin),
            client.query(&lock, &number),
            client.query(&read, &digest)
        );
        open.map_err(store_error)?;
        let own = row::own(&told.map_err(store_error)?)?;
        let begun = match row::taken(own, &rows.map_err(store_error)?)? {
            Taken::Free(fence) => {
                let transaction = client.numbered(own.unwrap_or_default());
                return Ok(Begun::Free { transaction, fence });
            }
            Taken::Expired(fence) => {
                client.ask(&DROP, &digest).await?;
                let transaction = client.numbered(own.unwrap_or_default());
                return Ok(Begun::Free { transaction, fence });
            }
            Taken::Recorded(found) => Begun::Recorded(found),
            Taken::Running => Begun::Running,
        };
        self.roll_back(client).await;
        Ok(begun)
    }
}

#[async_trait]
impl Database for PgDatabase {
    type Transaction = PgTransaction;

    async fn begin(&self, id: &RecordId) -> Result<Begun<PgTransaction>, StoreError> {
        let client = self.connection().await?;
        self.begin_on(client, "BEGIN", id).await
    }

    async fn begin_again(
        &self,
        transaction: PgTransaction,
        id: &RecordId,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        self.begin_on(transaction, "ROLLBACK; BEGIN", id).await
    }

    async fn commit(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let values = Values::of(entry, transaction.own());
        let parameters = values.all();
        let record = match transaction.prepared(&RECORD).await {
            Ok(record) => record,
            // What the operation did has failed, or the connection is gone: nothing is left.
            Err(error) => {
                warn!(%error, "an operation could not be recorded and is rolled back");
                return Ok(Fenced::Lost);
            }
        };
        let error = match commit(&transaction, &record, &parameters).await {
            Ok(()) => {
                transaction.end();
                return Ok(Fenced::Applied);
            }
            Err(error) => error,
        };
        if Verdict::of(&error) == Verdict::Lost {
            let message = format!("the connection was lost at its commit ({})", said(&error));
            return Err(StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown());
        }
        warn!(error = said(&error), "an operation could not be recorded and is rolled back");
        self.roll_back(transaction).await;
        Ok(Fenced::Lost)
    }

    async fn roll_back(&self, transaction: PgTransaction) {
        if transaction.batch_execute("ROLLBACK").await.is_ok() {
            transaction.end();
        }
    }

    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError> {
        let client = self.connection().await?;
        let name = Name::of(id);
        let mut seen = row::read(&client.ask(&READ, &name.digest()).await?)?;
        if seen.is_none() {
            let rows = client.ask(&RUNNING, &name.lock()).await?;
            if rows.first().is_none_or(|row| row.try_get("running").unwrap_or(true)) {
                client.end();
                return Ok(Seen::Running);
            }
            // Who had the lock a moment ago may have committed since the record was asked for.
            seen = row::read(&client.ask(&READ, &name.digest()).await?)?;
        }
        client.end();
        Ok(seen.map_or(Seen::Absent, Seen::Recorded))
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let client = self.connection().await?;
        let limit = i64::from(limit);
        let statement = client.prepared(&SWEEP).await?;
        let done = client.execute(&statement, &[&limit]).await.map_err(store_error)?;
        client.end();
        let done = u32::try_from(done).unwrap_or(u32::MAX);
        Ok(Batch { done, more: i64::from(done) >= limit })
    }
}

/// Adds the record and commits, in one round trip. A record that is refused undoes the transaction,
/// whatever it is told afterwards; one that cannot even be sent is not followed by a commit.
async fn commit(
    transaction: &PgTransaction,
    record: &Statement,
    parameters: &[Parameter<'_>],
) -> Result<(), Error> {
    let mut recording = pin!(transaction.execute(record, parameters));
    let sent = poll_fn(|context| Poll::Ready(recording.as_mut().poll(context))).await;
    let (recorded, committed) = match sent {
        Poll::Ready(Err(error)) => return Err(error),
        Poll::Ready(recorded @ Ok(_)) => (recorded, transaction.batch_execute("COMMIT").await),
        Poll::Pending => join!(biased; recording, transaction.batch_execute("COMMIT")),
    };
    recorded.and(committed)
}

impl fmt::Debug for PgDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgDatabase").field("pool", &self.pool.status()).finish()
    }
}
