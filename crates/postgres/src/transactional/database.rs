//! Records in the user's database, through a pool of connections.

use std::{fmt, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool, PoolError};
use semel::transactional::{BeginResult, Database, Entry, RecordLookup, TransactionalStore};
use semel_core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind};
use tokio::{join, sync::OnceCell, time::timeout};
use tokio_postgres::{Error, Row};
use tracing::warn;

use super::{
    PgTransaction, TABLE,
    handoff_queue::{HandedTransaction, HandoffQueue, HandoffWaiter},
    row::{self, RUNNING, RecordKey, RecordValues, SqlParameter, TypedSql},
    simple_query::{self, BeginReply},
    statements::{TABLE_NAME, TableStatements},
};
use crate::error::{ErrorClass, corrupt, describe, store_error};

/// The timeout for a connection of the pool, and for the lookup of the table.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The advisory lock under which the table is created, in case two programs start at once.
const CREATE_TABLE_LOCK: i64 = 0x5e3e_1000_7ab1_e000;

/// A store whose records are rows of `semel_transactional`.
pub type PgTransactionalStore = TransactionalStore<PgDatabase>;

/// Your own database, through the pool of your program.
#[derive(Clone)]
pub struct PgDatabase {
    pool: Pool,
    statements: Arc<OnceCell<Arc<TableStatements>>>,
    /// Operations that wait for a connection, if connections are handed off.
    handoff: Option<Arc<HandoffQueue>>,
}

impl PgDatabase {
    /// The database that this pool connects to. It must have the [table](super::TABLE), which the
    /// first operation looks up by its unqualified name.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, statements: Arc::default(), handoff: None }
    }

    /// Hands a connection off from one operation to the next while all connections of the pool are
    /// in use: one message commits the first operation and begins the second. This saves each
    /// operation a round trip.
    ///
    /// Session settings stay, as in a pool whose recycling method is `Fast`. Do not use this if a
    /// hook of the pool or another recycling method resets what an operation has set, or if one of
    /// them queries the server: a hand-off in the meantime discards the connection that was being
    /// recycled. After some operations a connection goes back to its pool, for its other users. An
    /// operation that waits for a hand-off waits for the commit before it; if that hangs, it fails
    /// because no connection was free.
    #[must_use]
    pub fn with_connection_handoff(mut self) -> Self {
        self.handoff = Some(Arc::default());
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
        Ok(PgTransaction::new(object, Arc::clone(statements)))
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

/// A connection from the pool, or one that was handed off.
enum ObtainedConnection {
    Pooled(PgTransaction),
    HandedOff(HandedTransaction),
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
    async fn try_query_rows(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.query_typed(&sql.text, &sql.typed(parameters)).await
    }

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
        let reply = simple_query::begin(&client, again, &record).await.map_err(store_error)?;
        self.finish_begin(client, &record, &reply).await
    }

    /// Begins on a connection that is handed off, or on one of the pool, whichever comes first.
    async fn begin_queued(
        &self,
        handoff: &Arc<HandoffQueue>,
        id: &RecordId,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        let record = RecordKey::of(id);
        match self.wait_for_connection(handoff, record).await? {
            ObtainedConnection::Pooled(client) => self.begin_on(client, false, id).await,
            ObtainedConnection::HandedOff(HandedTransaction { transaction, reply }) => {
                self.finish_begin(transaction, &record, &reply).await
            }
        }
    }

    /// Waits for a connection. Once there is one, the request to the pool is cancelled: a
    /// connection that it grants later would be lost.
    async fn wait_for_connection(
        &self,
        handoff: &Arc<HandoffQueue>,
        record: RecordKey,
    ) -> Result<ObtainedConnection, StoreError> {
        let mut pooled = pin!(self.connection());
        // An idle connection is granted by the first poll.
        let first = poll_fn(|context| Poll::Ready(pooled.as_mut().poll(context))).await;
        if let Poll::Ready(client) = first {
            return client.map(ObtainedConnection::Pooled);
        }
        let mut place = handoff.enqueue(record);
        loop {
            tokio::select! {
                biased;
                client = &mut pooled => {
                    if place.leave() {
                        return client.map(ObtainedConnection::Pooled);
                    }
                    // A hand-off to this operation is under way, or has failed.
                    let Some(handed) = place.handed().await else {
                        return client.map(ObtainedConnection::Pooled);
                    };
                    if let Ok(client) = client {
                        client.end();
                    }
                    return Ok(ObtainedConnection::HandedOff(handed));
                }
                handed = place.handed() => match handed {
                    Some(handed) => return Ok(ObtainedConnection::HandedOff(handed)),
                    None => place.enqueue_again(record),
                },
            }
        }
    }

    /// The operation that gets this connection after the commit. None while the pool may still
    /// grow: each hand-off would cancel the opening of a new connection.
    fn next_waiter(&self, transaction: &PgTransaction) -> Option<HandoffWaiter> {
        let handoff = self.handoff.as_ref().filter(|_| transaction.may_hand_off())?;
        let status = self.pool.status();
        if status.size < status.max_size { None } else { handoff.pop_oldest() }
    }

    /// Turns the reply to the begin message into a result.
    async fn finish_begin(
        &self,
        client: PgTransaction,
        record: &RecordKey,
        reply: &BeginReply,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        let again;
        let reply = if reply.transaction_id.is_some() && !reply.current {
            again = simple_query::begin_locked(&client, record).await.map_err(store_error)?;
            &again
        } else {
            reply
        };
        let transaction_id = match (reply.transaction_id, reply.expired) {
            (_, Some(false)) => return self.replay(client, record).await,
            (None, None | Some(true)) => {
                self.roll_back(client).await;
                return Ok(BeginResult::Running);
            }
            (Some(transaction_id), Some(true)) => {
                client.query_rows(&client.statements().drop, &record.digest()).await?;
                transaction_id
            }
            (Some(transaction_id), None) => transaction_id,
        };
        Ok(BeginResult::Free {
            transaction: client.numbered(transaction_id),
            fence: row::fence(reply.fence)?,
        })
    }

    /// Reads an existing record and ends the transaction, in one round trip.
    async fn replay(
        &self,
        client: PgTransaction,
        record: &RecordKey,
    ) -> Result<BeginResult<PgTransaction>, StoreError> {
        let (read, digest) = (&client.statements().read, record.digest());
        let (rows, ended) =
            join!(biased; client.try_query_rows(read, &digest), client.batch_execute("ROLLBACK"));
        if ended.is_ok() {
            client.end();
        }
        let found = row::read(&rows.map_err(store_error)?)?;
        // Deleted since, by a sweep or by hand: a waiting request will find it absent.
        Ok(found.map_or(BeginResult::Running, BeginResult::Recorded))
    }

    /// Commits, and begins the transaction of the next operation.
    async fn commit_and_hand_off(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
        next: HandoffWaiter,
    ) -> Result<Fenced, StoreError> {
        let values = RecordValues::of(entry, transaction.transaction_id());
        let error = match simple_query::commit_and_begin(&transaction, &values, &next.record).await
        {
            Ok(reply) => {
                let transaction = transaction.count_handoff();
                if let Some(left) = next.send(HandedTransaction { transaction, reply }) {
                    self.roll_back(left.transaction).await;
                }
                return Ok(Fenced::Applied);
            }
            Err(error) => error,
        };
        // The next operation then begins by itself.
        drop(next);
        if ErrorClass::of(&error) == ErrorClass::ConnectionLost {
            return Err(lost(&error));
        }
        // Usually the insert failed, but what follows the commit may have failed as well.
        transaction.batch_execute("ROLLBACK").await.map_err(|error| lost(&error))?;
        let seen = transaction.look_up(entry.id).await.map_err(StoreError::effect_unknown)?;
        if ErrorClass::of(&error) != ErrorClass::ConnectionUnusable {
            transaction.end();
        }
        match seen {
            RecordLookup::Recorded(found) if found.fence == entry.fence => Ok(Fenced::Applied),
            RecordLookup::Recorded(_) | RecordLookup::Running | RecordLookup::Absent => {
                warn!(error = describe(&error), "cannot record an operation; rolled it back");
                Ok(Fenced::Lost)
            }
        }
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
        match &self.handoff {
            Some(handoff) => self.begin_queued(handoff, id).await,
            None => self.begin_on(self.connection().await?, false, id).await,
        }
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
        if values.answer.len() <= simple_query::ANSWER_BYTES_MAX {
            if let Some(next) = self.next_waiter(&transaction) {
                return self.commit_and_hand_off(transaction, entry, next).await;
            }
            let ended = simple_query::commit(&transaction, &values).await;
            return self.ended(transaction, ended).await;
        }
        let ended = commit(&transaction, &values).await;
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

/// Inserts the record and commits, in one round trip. An insert that fails makes the server roll
/// the transaction back at COMMIT; if the insert cannot be sent, no COMMIT follows.
async fn commit(transaction: &PgTransaction, values: &RecordValues<'_>) -> Result<(), Error> {
    let values = values.all();
    let mut recording = pin!(transaction.try_query_rows(&transaction.statements().add, &values));
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
