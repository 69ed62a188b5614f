//! The database behind a pool of connections.

use std::{fmt, future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{Object, Pool, PoolError};
use semel::joint::{Begun, Database, Entry, JointStore, Seen};
use semel_core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind};
use tokio::{join, sync::OnceCell, time::timeout};
use tokio_postgres::{Error, Row};
use tracing::warn;

use super::{
    PgTransaction, TABLE,
    line::{Handed, Line, Waiter},
    message::{self, Met},
    row::{self, Name, Parameter, RUNNING, Sql, Values},
    statements::{Statements, TABLE_NAME},
};
use crate::error::{Verdict, damaged, said, store_error};

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
    statements: Arc<OnceCell<Arc<Statements>>>,
    /// Those who wait for a connection, where one is handed on.
    line: Option<Arc<Line>>,
}

impl PgDatabase {
    /// The database that this pool connects to. It must have the [table](super::TABLE), which is
    /// found by its name alone when it is first asked for something.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, statements: Arc::default(), line: None }
    }

    /// Hands a connection on from one operation to the next, while all of the pool are in use: one
    /// message commits the first and begins the second. That saves a round trip for each.
    ///
    /// What a connection has been told for its whole session stays, as it does in a pool whose
    /// recycling method is `Fast`. So leave this out where a hook of the pool, or another method,
    /// is to undo what an operation has set; and where one of them asks the server something, since
    /// a connection that is handed on in the meantime costs the one that was asked. After a few
    /// operations a connection goes back to its pool, so that others have their turn. Whoever is
    /// handed a connection waits for the commit of the one before, and if that hangs is told in the
    /// end that none was free.
    #[must_use]
    pub fn handing_on(mut self) -> Self {
        self.line = Some(Arc::default());
        self
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> PgStore {
        JointStore::new(self)
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

/// The statements for the table that its name leads to here.
async fn statements(client: &Object) -> Result<Arc<Statements>, StoreError> {
    let hangs = |_| {
        let message = "the database does not say where its table of records is";
        StoreError::new(StoreErrorKind::Unavailable, message)
    };
    let found = timeout(PATIENCE, client.query_typed(TABLE_NAME, &[])).await.map_err(hangs)?;
    let found = found.map_err(store_error)?;
    let name = found.first().and_then(|row| row.try_get("name").ok());
    name.map(|name| Arc::new(Statements::of(name))).ok_or_else(|| damaged("the name of a table"))
}

async fn connection(pool: &Pool) -> Result<Object, StoreError> {
    let busy = || {
        let message = "every connection of the pool is in use: try again later";
        StoreError::new(StoreErrorKind::Busy, message)
    };
    match timeout(PATIENCE, pool.get()).await {
        Ok(Ok(object)) => Ok(object),
        Ok(Err(PoolError::Backend(error))) => Err(store_error(error)),
        Err(_) | Ok(Err(PoolError::Timeout(_))) => Err(busy()),
        Ok(Err(error)) => {
            let message = "the pool gives no connection";
            Err(StoreError::new(StoreErrorKind::Unavailable, message).because(error))
        }
    }
}

/// A connection that somebody got who waited for one.
enum Got {
    Pooled(PgTransaction),
    Handed(Handed),
}

/// Makes the [table](super::TABLE) where the pool connects to, if it is not there.
///
/// # Errors
///
/// If the database cannot be reached, or the role may not make it.
pub async fn create_table(pool: &Pool) -> Result<(), StoreError> {
    // Several statements in one message are one transaction.
    let sql = format!("SELECT pg_advisory_xact_lock({MAKING}); {TABLE}");
    connection(pool).await?.batch_execute(&sql).await.map_err(store_error)
}

impl PgTransaction {
    async fn rows(&self, sql: &Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.query_typed(&sql.text, &sql.typed(parameters)).await
    }

    async fn ask(&self, sql: &Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, StoreError> {
        self.rows(sql, parameters).await.map_err(store_error)
    }

    /// What there is of a record, without taking part.
    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError> {
        let (name, read) = (Name::of(id), &self.statements().read);
        let mut seen = row::read(&self.ask(read, &name.digest()).await?)?;
        if seen.is_none() {
            let rows = self.ask(&RUNNING, &name.lock()).await?;
            if rows.first().is_none_or(|row| row.try_get("running").unwrap_or(true)) {
                return Ok(Seen::Running);
            }
            // Who had the lock a moment ago may have committed since the record was asked for.
            seen = row::read(&self.ask(read, &name.digest()).await?)?;
        }
        Ok(seen.map_or(Seen::Absent, Seen::Recorded))
    }
}

impl PgDatabase {
    /// Begins on this connection; `again` undoes what is open there.
    async fn begin_on(
        &self,
        client: PgTransaction,
        again: bool,
        id: &RecordId,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        let name = Name::of(id);
        let met = message::begin(&client, again, &name).await.map_err(store_error)?;
        self.go_on(client, &name, &met).await
    }

    /// Begins on the connection of somebody who commits, or on one of the pool, whichever comes
    /// first.
    async fn begin_in_line(
        &self,
        line: &Arc<Line>,
        id: &RecordId,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        let name = Name::of(id);
        match self.wait_in_line(line, name).await? {
            Got::Pooled(client) => self.begin_on(client, false, id).await,
            Got::Handed(Handed { transaction, met }) => self.go_on(transaction, &name, &met).await,
        }
    }

    /// Waits for a connection. Once there is one, nothing is asked of the pool any more: what it
    /// gave to somebody who does not look would be nobody's.
    async fn wait_in_line(&self, line: &Arc<Line>, name: Name) -> Result<Got, StoreError> {
        let mut pooled = pin!(self.connection());
        // One that is free is there at once, and whoever has it stands in nobody's way.
        let first = poll_fn(|context| Poll::Ready(pooled.as_mut().poll(context))).await;
        if let Poll::Ready(client) = first {
            return client.map(Got::Pooled);
        }
        let mut place = line.stand(name);
        loop {
            tokio::select! {
                biased;
                client = &mut pooled => {
                    if place.leave() {
                        return client.map(Got::Pooled);
                    }
                    // Somebody begins for us already, or has tried to.
                    let Some(handed) = place.handed().await else {
                        return client.map(Got::Pooled);
                    };
                    if let Ok(client) = client {
                        client.end();
                    }
                    return Ok(Got::Handed(handed));
                }
                handed = place.handed() => match handed {
                    Some(handed) => return Ok(Got::Handed(handed)),
                    None => place.stand_again(name),
                },
            }
        }
    }

    /// Who is to have the connection of somebody who commits. Nobody, as long as the pool may make
    /// another one: who waits for that would give up the making again and again.
    fn next_in_line(&self, transaction: &PgTransaction) -> Option<Waiter> {
        let line = self.line.as_ref().filter(|_| transaction.may_be_handed_on())?;
        let status = self.pool.status();
        if status.size < status.max_size { None } else { line.call() }
    }

    /// What comes of what was met.
    async fn go_on(
        &self,
        client: PgTransaction,
        name: &Name,
        met: &Met,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        let again;
        let met = if met.own.is_some() && !met.current {
            again = message::begin_locked(&client, name).await.map_err(store_error)?;
            &again
        } else {
            met
        };
        let own = match (met.own, met.expired) {
            (_, Some(false)) => return self.replay(client, name).await,
            (None, None | Some(true)) => {
                self.roll_back(client).await;
                return Ok(Begun::Running);
            }
            (Some(own), Some(true)) => {
                client.ask(&client.statements().drop, &name.digest()).await?;
                own
            }
            (Some(own), None) => own,
        };
        Ok(Begun::Free { transaction: client.numbered(own), fence: row::fence(met.fence)? })
    }

    /// Reads a record that is there, and ends the transaction, in one round trip.
    async fn replay(
        &self,
        client: PgTransaction,
        name: &Name,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        let (read, digest) = (&client.statements().read, name.digest());
        let (rows, ended) =
            join!(biased; client.rows(read, &digest), client.batch_execute("ROLLBACK"));
        if ended.is_ok() {
            client.end();
        }
        let found = row::read(&rows.map_err(store_error)?)?;
        // Gone since, by a sweep or by hand: who waits for it will see that it is absent.
        Ok(found.map_or(Begun::Running, Begun::Recorded))
    }

    /// Commits, and begins for the next one.
    async fn commit_and_hand(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
        next: Waiter,
    ) -> Result<Fenced, StoreError> {
        let values = Values::of(entry, transaction.own());
        let error = match message::commit_and_begin(&transaction, &values, &next.name).await {
            Ok(met) => {
                let transaction = transaction.handed_on();
                if let Some(left) = next.hand(Handed { transaction, met }) {
                    self.roll_back(left.transaction).await;
                }
                return Ok(Fenced::Applied);
            }
            Err(error) => error,
        };
        // They begin by themselves.
        drop(next);
        if Verdict::of(&error) == Verdict::Lost {
            return Err(lost(&error));
        }
        // Before the commit as a rule, but what came after it may have failed as well.
        transaction.batch_execute("ROLLBACK").await.map_err(|error| lost(&error))?;
        let seen = transaction.look(entry.id).await.map_err(StoreError::effect_unknown)?;
        if Verdict::of(&error) != Verdict::Unfit {
            transaction.end();
        }
        match seen {
            Seen::Recorded(found) if found.fence == entry.fence => Ok(Fenced::Applied),
            Seen::Recorded(_) | Seen::Running | Seen::Absent => {
                warn!(error = said(&error), "an operation could not be recorded: rolled back");
                Ok(Fenced::Lost)
            }
        }
    }

    /// What became of a commit.
    async fn ended(
        &self,
        transaction: PgTransaction,
        ended: Result<(), Error>,
    ) -> Result<Fenced, StoreError> {
        let Err(error) = ended else {
            transaction.end();
            return Ok(Fenced::Applied);
        };
        if Verdict::of(&error) == Verdict::Lost {
            return Err(lost(&error));
        }
        warn!(error = said(&error), "an operation could not be recorded and is rolled back");
        // A connection that refuses everything is of no use to whoever would have it next.
        if Verdict::of(&error) != Verdict::Unfit {
            self.roll_back(transaction).await;
        }
        Ok(Fenced::Lost)
    }
}

#[async_trait]
impl Database for PgDatabase {
    type Transaction = PgTransaction;

    async fn begin(&self, id: &RecordId) -> Result<Begun<PgTransaction>, StoreError> {
        match &self.line {
            Some(line) => self.begin_in_line(line, id).await,
            None => self.begin_on(self.connection().await?, false, id).await,
        }
    }

    async fn begin_again(
        &self,
        transaction: PgTransaction,
        id: &RecordId,
    ) -> Result<Begun<PgTransaction>, StoreError> {
        self.begin_on(transaction, true, id).await
    }

    async fn commit(
        &self,
        transaction: PgTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let values = Values::of(entry, transaction.own());
        if values.answer.len() <= message::ANSWER_BYTES_MAX {
            if let Some(next) = self.next_in_line(&transaction) {
                return self.commit_and_hand(transaction, entry, next).await;
            }
            let ended = message::commit(&transaction, &values).await;
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

    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError> {
        let client = self.connection().await?;
        let seen = client.look(id).await?;
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
        Ok(Batch { done, more: i64::from(done) >= limit })
    }
}

fn lost(error: &Error) -> StoreError {
    let message = format!("the connection was lost at its commit ({})", said(error));
    StoreError::new(StoreErrorKind::Unavailable, message).effect_unknown()
}

/// Adds the record and commits, in one round trip. A record that is refused undoes the transaction,
/// whatever it is told afterwards; one that cannot even be sent is not followed by a commit.
async fn commit(transaction: &PgTransaction, values: &Values<'_>) -> Result<(), Error> {
    let values = values.all();
    let mut recording = pin!(transaction.rows(&transaction.statements().add, &values));
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
