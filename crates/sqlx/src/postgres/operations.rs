//! Operations of several steps in PostgreSQL, through a [`sqlx::PgPool`]; see [`semel_steps`].

use std::time::Duration;

use async_trait::async_trait;
use semel::core::{Fenced, StoreError, StoreErrorKind};
use semel_steps::{
    OperationStore,
    clock::millis,
    sql::postgres as sql,
    store::{
        Direction, NewOperation, OperationEnd, OperationFilter, OperationRow, OperationState,
        OperatorStep, OwnedOperation, ReleaseRequest, StepPart, StepRow, StepState, StepWrite,
        TakeRequest,
    },
};
use sqlx::{
    AssertSqlSafe, Error, PgConnection, PgPool, Postgres, Row as _, Transaction, postgres::PgRow,
};

use crate::{
    detached::run_detached,
    error::{damaged, store_error},
};

/// Your own PostgreSQL database, through the pool of your program. Programs with `semel-steps` may
/// use the same operations.
#[derive(Clone, Debug)]
pub struct PgOperations {
    pool: PgPool,
}

impl PgOperations {
    /// The database that this pool connects to. It must have the
    /// [tables](semel_steps::sql::postgres::TABLES).
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Creates the tables if they do not exist.
    ///
    /// # Errors
    ///
    /// If the database cannot be reached, or the role may not create them.
    pub async fn create_tables(&self) -> Result<(), StoreError> {
        let lock = sql::CREATE_TABLES_LOCK;
        let script = format!("SELECT pg_advisory_xact_lock({lock}); {}", sql::TABLES);
        let done = sqlx::raw_sql(AssertSqlSafe(script)).execute(&self.pool).await;
        done.map(drop).map_err(unknown)
    }
}

/// Whether a statement changed a row.
fn fenced(done: Result<u64, Error>) -> Result<Fenced, StoreError> {
    let changed = done.map_err(unknown)?;
    Ok(if changed > 0 { Fenced::Applied } else { Fenced::Lost })
}

/// The error of a write, which had no effect only if the server refused it.
fn unknown(error: Error) -> StoreError {
    let code = error.as_database_error().and_then(|error| error.code());
    let is_certain = matches!(error, Error::PoolTimedOut)
        || code.is_some_and(|code| !["08", "57", "58"].iter().any(|class| code.starts_with(class)));
    let error = store_error(error);
    if is_certain { error } else { error.effect_unknown() }
}

async fn write(
    connection: &mut PgConnection,
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
    let written: Vec<String> = sqlx::query_scalar(sql::STEP)
        .bind(owned.id)
        .bind(owned.fence)
        .bind(names)
        .bind(parts)
        .bind(states)
        .bind(results)
        .bind(positions)
        .bind(in_transaction)
        .fetch_all(connection)
        .await
        .map_err(unknown)?;
    let is_own = written.contains(&write.own.name);
    Ok(if is_own { Fenced::Applied } else { Fenced::Lost })
}

#[async_trait]
impl OperationStore for PgOperations {
    type Transaction = Transaction<'static, Postgres>;

    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError> {
        // A row that was found may be swept before it is read.
        for _ in 0..3 {
            let inserted = sqlx::query(sql::START.as_str())
                .bind(new.name)
                .bind(new.key)
                .bind(new.version)
                .bind(new.input)
                .bind(new.owner)
                .bind(millis(new.lease))
                .fetch_optional(&self.pool)
                .await
                .map_err(unknown)?;
            let found = match inserted {
                Some(row) => Some(row),
                None => {
                    let find = sqlx::query(sql::FIND.as_str()).bind(new.name).bind(new.key);
                    find.fetch_optional(&self.pool).await.map_err(unknown)?
                }
            };
            if let Some(row) = found {
                return operation(&row).map_err(store_error);
            }
        }
        Err(StoreError::new(StoreErrorKind::Unavailable, "the operation is deleted each time"))
    }

    async fn step(&self, owned: OwnedOperation, rows: &StepWrite) -> Result<Fenced, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        write(&mut connection, owned, rows, false).await
    }

    async fn begin(&self) -> Result<Self::Transaction, StoreError> {
        let pool = self.pool.clone();
        run_detached(async move { pool.begin().await.map_err(store_error) }).await
    }

    async fn commit(
        &self,
        mut transaction: Self::Transaction,
        owned: OwnedOperation,
        rows: &StepWrite,
    ) -> Result<Fenced, StoreError> {
        let rows = rows.clone();
        run_detached(async move {
            let written = write(&mut transaction, owned, &rows, true).await?;
            if written == Fenced::Applied {
                transaction.commit().await.map_err(unknown)?;
            } else {
                transaction.rollback().await.map_err(store_error)?;
            }
            Ok(written)
        })
        .await
    }

    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError> {
        let turn = sqlx::query(sql::TURN).bind(owned.id).bind(owned.fence).bind(refusal);
        fenced(turn.execute(&self.pool).await.map(|done| done.rows_affected()))
    }

    async fn finish(
        &self,
        owned: OwnedOperation,
        end: &OperationEnd,
    ) -> Result<Fenced, StoreError> {
        let (state, result, reason) = end.columns();
        let finish = sqlx::query(sql::FINISH)
            .bind(owned.id)
            .bind(owned.fence)
            .bind(state.as_str())
            .bind(result)
            .bind(reason);
        fenced(finish.execute(&self.pool).await.map(|done| done.rows_affected()))
    }

    async fn take_lapsed(
        &self,
        request: &TakeRequest<'_>,
    ) -> Result<Vec<OperationRow>, StoreError> {
        let names: Vec<&str> = request.known.iter().map(|(name, _)| name.as_str()).collect();
        let versions: Vec<i32> = request.known.iter().map(|(_, version)| *version).collect();
        let taken = sqlx::query(sql::TAKE_LAPSED.as_str())
            .bind(names)
            .bind(versions)
            .bind(request.owner)
            .bind(millis(request.lease))
            .bind(i64::from(request.limit))
            .fetch_all(&self.pool)
            .await
            .map_err(unknown)?;
        taken.iter().map(operation).collect::<Result<_, _>>().map_err(store_error)
    }

    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError> {
        let ids: Vec<i64> = owned.iter().map(|owned| owned.id).collect();
        let fences: Vec<i64> = owned.iter().map(|owned| owned.fence).collect();
        let renew = sqlx::query_scalar(sql::RENEW).bind(ids).bind(fences).bind(millis(lease));
        renew.fetch_all(&self.pool).await.map_err(unknown)
    }

    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError> {
        let release = sqlx::query(sql::RELEASE)
            .bind(owned.id)
            .bind(owned.fence)
            .bind(millis(release.pause))
            .bind(release.is_counted)
            .bind(release.reason);
        fenced(release.execute(&self.pool).await.map(|done| done.rows_affected()))
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        let read = sqlx::query(sql::READ.as_str()).bind(id).fetch_optional(&self.pool);
        let row = read.await.map_err(store_error)?;
        row.as_ref().map(operation).transpose().map_err(store_error)
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        let rows = sqlx::query(sql::STEPS).bind(id).fetch_all(&self.pool).await;
        let rows = rows.map_err(store_error)?;
        rows.iter().map(step).collect::<Result<_, _>>().map_err(store_error)
    }

    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        let list = sqlx::query(sql::LIST.as_str())
            .bind(filter.state.map(OperationState::as_str))
            .bind(filter.name.as_deref())
            .bind(filter.before)
            .bind(i64::from(filter.limit));
        let rows = list.fetch_all(&self.pool).await.map_err(store_error)?;
        rows.iter().map(operation).collect::<Result<_, _>>().map_err(store_error)
    }

    async fn operate(
        &self,
        seen: OwnedOperation,
        act: &OperatorStep,
    ) -> Result<Fenced, StoreError> {
        let (act, reason) = match act {
            OperatorStep::Settle { step, result } => {
                let settle = sqlx::query(sql::SETTLE)
                    .bind(seen.id)
                    .bind(seen.fence)
                    .bind(step)
                    .bind(result.as_deref());
                return fenced(settle.execute(&self.pool).await.map(|done| done.rows_affected()));
            }
            OperatorStep::Resume => ("resume", None),
            OperatorStep::Undo => ("undo", None),
            OperatorStep::Park(reason) => ("park", Some(reason.as_str())),
        };
        let operate =
            sqlx::query(sql::OPERATE).bind(seen.id).bind(seen.fence).bind(act).bind(reason);
        fenced(operate.execute(&self.pool).await.map(|done| done.rows_affected()))
    }

    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError> {
        let sweep = sqlx::query(sql::SWEEP).bind(millis(retention)).bind(i64::from(limit));
        sweep.execute(&self.pool).await.map(|done| done.rows_affected()).map_err(unknown)
    }
}

fn operation(row: &PgRow) -> Result<OperationRow, Error> {
    let direction = Direction::parse(row.try_get("direction")?);
    let state = OperationState::parse(row.try_get("state")?);
    Ok(OperationRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        version: row.try_get("version")?,
        key: row.try_get("key")?,
        input: row.try_get("input")?,
        fence: row.try_get("fence")?,
        owner: row.try_get("owner")?,
        direction: direction.ok_or_else(|| damaged("direction"))?,
        state: state.ok_or_else(|| damaged("state"))?,
        attempt: row.try_get("attempt")?,
        result: row.try_get("result")?,
        refusal: row.try_get("refusal")?,
        reason: row.try_get("reason")?,
        age_ms: row.try_get("age_ms")?,
        lease_ms: row.try_get("lease_ms")?,
    })
}

fn step(row: &PgRow) -> Result<StepRow, Error> {
    Ok(StepRow {
        name: row.try_get("name")?,
        part: StepPart::parse(row.try_get("part")?).ok_or_else(|| damaged("part"))?,
        state: StepState::parse(row.try_get("state")?).ok_or_else(|| damaged("state"))?,
        result: row.try_get("result")?,
        position: row.try_get("position")?,
    })
}
