//! Operations in PostgreSQL, through a pool of tokio-postgres.

use std::{error::Error as _, fmt, ops::Deref, time::Duration};

use async_trait::async_trait;
use deadpool_postgres::{ClientWrapper, Object, Pool, PoolError};
use semel_core::{Fenced, StoreError, StoreErrorKind};
use tokio::time::timeout;
use tokio_postgres::{
    Error, Row,
    error::{Severity, SqlState},
    types::ToSql,
};

use crate::{
    clock::millis,
    sql::postgres as sql,
    store::{
        Direction, NewOperation, OperationEnd, OperationFilter, OperationRow, OperationState,
        OperationStore, OperatorStep, OwnedOperation, ReleaseRequest, StepPart, StepRow, StepState,
        StepWrite, TakeRequest,
    },
};

/// The timeout for a connection of the pool.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The tables, for a migration of your own. It may be run again.
pub const TABLES: &str = sql::TABLES;

/// Your own PostgreSQL database, through the pool of your program.
///
/// The statements are prepared once on each connection. A pooler between your program and the
/// database must therefore support prepared statements.
#[derive(Clone)]
pub struct PgOperations {
    pool: Pool,
}

impl PgOperations {
    /// The database that this pool connects to. It must have the [tables](TABLES), which are found
    /// by their unqualified names.
    #[must_use]
    pub const fn new(pool: Pool) -> Self {
        Self { pool }
    }

    /// Creates the [tables](TABLES) if they do not exist.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the role may not create them.
    pub async fn create_tables(&self) -> Result<(), StoreError> {
        // Several statements in one message are one transaction.
        let lock = sql::CREATE_TABLES_LOCK;
        let script = format!("SELECT pg_advisory_xact_lock({lock}); {TABLES}");
        self.connection().await?.batch_execute(&script).await.map_err(store_error)
    }

    async fn connection(&self) -> Result<Object, StoreError> {
        match timeout(CONNECTION_TIMEOUT, self.pool.get()).await {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(PoolError::Backend(error))) => Err(store_error(error)),
            Err(_) | Ok(Err(PoolError::Timeout(_))) => {
                let message = "every connection of the pool is in use: try again later";
                Err(StoreError::new(StoreErrorKind::Busy, message))
            }
            Ok(Err(error)) => {
                let message = "the pool provides no connection";
                Err(StoreError::new(StoreErrorKind::Unavailable, message).because(error))
            }
        }
    }

    async fn query(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let client = self.connection().await?;
        query(&client, sql, parameters).await
    }

    async fn update(
        &self,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Fenced, StoreError> {
        let client = self.connection().await?;
        let statement = client.prepare_cached(sql).await.map_err(store_error)?;
        let changed = client.execute(&statement, parameters).await.map_err(store_error)?;
        Ok(if changed > 0 { Fenced::Applied } else { Fenced::Lost })
    }
}

async fn query(
    client: &ClientWrapper,
    sql: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let statement = client.prepare_cached(sql).await.map_err(store_error)?;
    client.query(&statement, parameters).await.map_err(store_error)
}

/// An open transaction of a step. It dereferences to its connection: `query`, `execute` and the
/// others work as usual. Dropping it rolls everything back.
pub struct PgStepTransaction {
    /// `None` only after the end.
    object: Option<Object>,
}

impl PgStepTransaction {
    /// Returns the connection to its pool; no transaction may be open on it.
    fn end(mut self) {
        self.object = None;
    }
}

impl Deref for PgStepTransaction {
    type Target = ClientWrapper;

    #[expect(clippy::expect_used, reason = "only `end` and `drop` take it, and both end the value")]
    fn deref(&self) -> &ClientWrapper {
        self.object.as_ref().expect("a transaction has its connection until it ends")
    }
}

impl Drop for PgStepTransaction {
    fn drop(&mut self) {
        // Taken out of the pool and closed, so that the server rolls back.
        drop(self.object.take().map(Object::take));
    }
}

impl fmt::Debug for PgStepTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgStepTransaction").finish_non_exhaustive()
    }
}

/// Writes rows; whether the row of the step itself was written.
async fn write(
    client: &ClientWrapper,
    owned: OwnedOperation,
    write: &StepWrite,
    in_transaction: bool,
) -> Result<Fenced, StoreError> {
    let mut rows: Vec<&StepRow> = write.noted.iter().chain([&write.own]).collect();
    rows.sort_by_key(|row| &row.name);
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let parts: Vec<&str> = rows.iter().map(|row| row.part.as_str()).collect();
    let states: Vec<&str> = rows.iter().map(|row| row.state.as_str()).collect();
    let results: Vec<Option<&str>> = rows.iter().map(|row| row.result.as_deref()).collect();
    let positions: Vec<i64> = rows.iter().map(|row| row.position).collect();
    let OwnedOperation { id, fence } = owned;
    let parameters: [&(dyn ToSql + Sync); 8] =
        [&id, &fence, &names, &parts, &states, &results, &positions, &in_transaction];
    let written = query(client, sql::STEP, &parameters).await?;
    let is_own = |row: &Row| row.try_get::<_, &str>(0).is_ok_and(|name| name == write.own.name);
    Ok(if written.iter().any(is_own) { Fenced::Applied } else { Fenced::Lost })
}

#[async_trait]
impl OperationStore for PgOperations {
    type Transaction = PgStepTransaction;

    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError> {
        let NewOperation { name, version, key, input, owner, lease } = *new;
        let lease = millis(lease);
        let client = self.connection().await?;
        // A row that was found may be swept before it is read.
        for _ in 0..3 {
            let parameters: [&(dyn ToSql + Sync); 6] =
                [&name, &key, &version, &input, &owner, &lease];
            let mut rows = query(&client, &sql::START, &parameters).await?;
            if rows.is_empty() {
                rows = query(&client, &sql::FIND, &[&name, &key]).await?;
            }
            if let Some(row) = rows.first() {
                return operation(row);
            }
        }
        Err(damaged("an operation"))
    }

    async fn step(&self, owned: OwnedOperation, rows: &StepWrite) -> Result<Fenced, StoreError> {
        write(&*self.connection().await?, owned, rows, false).await
    }

    async fn begin(&self) -> Result<PgStepTransaction, StoreError> {
        let transaction = PgStepTransaction { object: Some(self.connection().await?) };
        transaction.batch_execute("BEGIN").await.map_err(store_error)?;
        Ok(transaction)
    }

    async fn commit(
        &self,
        transaction: PgStepTransaction,
        owned: OwnedOperation,
        rows: &StepWrite,
    ) -> Result<Fenced, StoreError> {
        let written = write(&transaction, owned, rows, true).await?;
        let end = if written == Fenced::Applied { "COMMIT" } else { "ROLLBACK" };
        transaction.batch_execute(end).await.map_err(store_error)?;
        transaction.end();
        Ok(written)
    }

    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError> {
        self.update(sql::TURN, &[&owned.id, &owned.fence, &refusal]).await
    }

    async fn finish(
        &self,
        owned: OwnedOperation,
        end: &OperationEnd,
    ) -> Result<Fenced, StoreError> {
        let (state, result, reason) = end.columns();
        let state = state.as_str();
        self.update(sql::FINISH, &[&owned.id, &owned.fence, &state, &result, &reason]).await
    }

    async fn take_lapsed(
        &self,
        request: &TakeRequest<'_>,
    ) -> Result<Vec<OperationRow>, StoreError> {
        let names: Vec<&str> = request.known.iter().map(|(name, _)| name.as_str()).collect();
        let versions: Vec<i32> = request.known.iter().map(|(_, version)| *version).collect();
        let (lease, limit) = (millis(request.lease), i64::from(request.limit));
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&names, &versions, &request.owner, &lease, &limit];
        let taken = self.query(&sql::TAKE_LAPSED, &parameters).await?;
        taken.iter().map(operation).collect()
    }

    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError> {
        let ids: Vec<i64> = owned.iter().map(|owned| owned.id).collect();
        let fences: Vec<i64> = owned.iter().map(|owned| owned.fence).collect();
        let renewed = self.query(sql::RENEW, &[&ids, &fences, &millis(lease)]).await?;
        renewed.iter().map(|row| column(row, "id")).collect()
    }

    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError> {
        let ReleaseRequest { pause, is_counted, reason } = *release;
        let pause = millis(pause);
        self.update(sql::RELEASE, &[&owned.id, &owned.fence, &pause, &is_counted, &reason]).await
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        self.query(&sql::READ, &[&id]).await?.first().map(operation).transpose()
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        self.query(sql::STEPS, &[&id]).await?.iter().map(step).collect()
    }

    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        let OperationFilter { state, name, before, limit } = filter;
        let (state, limit) = (state.map(OperationState::as_str), i64::from(*limit));
        let rows = self.query(&sql::LIST, &[&state, name, before, &limit]).await?;
        rows.iter().map(operation).collect()
    }

    async fn operate(
        &self,
        seen: OwnedOperation,
        act: &OperatorStep,
    ) -> Result<Fenced, StoreError> {
        let OwnedOperation { id, fence } = seen;
        let (act, reason) = match act {
            OperatorStep::Settle { step, result } => {
                return self.update(sql::SETTLE, &[&id, &fence, step, result]).await;
            }
            OperatorStep::Resume => ("resume", None),
            OperatorStep::Undo => ("undo", None),
            OperatorStep::Park(reason) => ("park", Some(reason)),
        };
        self.update(sql::OPERATE, &[&id, &fence, &act, &reason]).await
    }

    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError> {
        let client = self.connection().await?;
        let parameters: [&(dyn ToSql + Sync); 2] = [&millis(retention), &i64::from(limit)];
        let statement = client.prepare_cached(sql::SWEEP).await.map_err(store_error)?;
        client.execute(&statement, &parameters).await.map_err(store_error)
    }
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    name: &str,
) -> Result<T, StoreError> {
    row.try_get(name).map_err(|error| damaged(name).because(error))
}

fn operation(row: &Row) -> Result<OperationRow, StoreError> {
    let direction = Direction::parse(column(row, "direction")?);
    let state = OperationState::parse(column(row, "state")?);
    Ok(OperationRow {
        id: column(row, "id")?,
        name: column(row, "name")?,
        version: column(row, "version")?,
        key: column(row, "key")?,
        input: column(row, "input")?,
        fence: column(row, "fence")?,
        owner: column(row, "owner")?,
        direction: direction.ok_or_else(|| damaged("direction"))?,
        state: state.ok_or_else(|| damaged("state"))?,
        attempt: column(row, "attempt")?,
        result: column(row, "result")?,
        refusal: column(row, "refusal")?,
        reason: column(row, "reason")?,
        age_ms: column(row, "age_ms")?,
        lease_ms: column(row, "lease_ms")?,
    })
}

fn step(row: &Row) -> Result<StepRow, StoreError> {
    Ok(StepRow {
        name: column(row, "name")?,
        part: StepPart::parse(column(row, "part")?).ok_or_else(|| damaged("part"))?,
        state: StepState::parse(column(row, "state")?).ok_or_else(|| damaged("state"))?,
        result: column(row, "result")?,
        position: column(row, "position")?,
    })
}

/// A value in a table that Semel never writes.
fn damaged(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, format!("{what} in the table cannot be read"))
}

/// The error of a statement. It took no effect only if the server rejected it.
fn store_error(error: Error) -> StoreError {
    use StoreErrorKind::{Corrupt, Full, ReadOnly, Unavailable};
    let db = error.as_db_error();
    let is_rejected = db.is_some_and(|db| {
        db.parsed_severity() == Some(Severity::Error) && !db.code().code().starts_with("08")
    });
    let (kind, advice) = match db.map(|db| db.code().clone()) {
        None => (Unavailable, "the connection to the database failed"),
        Some(SqlState::DISK_FULL) => (Full, "the database's disk is full: free space"),
        Some(SqlState::READ_ONLY_SQL_TRANSACTION) => (ReadOnly, "the database is read-only"),
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => (ReadOnly, "the role lacks a privilege"),
        Some(SqlState::UNDEFINED_TABLE | SqlState::UNDEFINED_COLUMN) => {
            (Corrupt, "the tables are missing: run `semel migrate --steps`")
        }
        Some(_) => (Unavailable, "the database rejected the statement"),
    };
    let cause = match (db, error.source()) {
        (Some(db), _) => format!("{}, SQLSTATE {}", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    };
    let error = StoreError::new(kind, format!("{advice} ({cause})")).because(error);
    if is_rejected { error } else { error.effect_unknown() }
}

impl fmt::Debug for PgOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgOperations").field("pool", &self.pool.status()).finish()
    }
}
