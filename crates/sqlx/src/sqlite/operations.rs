//! Operations of several steps in SQLite, through a [`sqlx::SqlitePool`]; see [`semel_steps`].

use std::time::Duration;

use async_trait::async_trait;
use semel::core::{Fenced, StoreError, StoreErrorKind};
use semel_steps::{
    OperationStore,
    clock::{boot_id, millis, since_boot, wall},
    sql::sqlite as sql,
    store::{
        Direction, NewOperation, OperationEnd, OperationFilter, OperationRow, OperationState,
        OperatorStep, OwnedOperation, ReleaseRequest, StepPart, StepRow, StepState, StepWrite,
        TakeRequest,
    },
};
use sqlx::{
    AssertSqlSafe, Error, Row as _, Sqlite, SqliteConnection, SqlitePool, Transaction,
    sqlite::SqliteRow,
};

use crate::{
    detached::run_detached,
    error::{damaged, store_error},
};

/// `PRAGMA synchronous`: a commit is on disk before it is acknowledged.
const SYNCHRONOUS_FULL: i64 = 2;

/// Your own SQLite file, through the pool of your program. Programs with `semel-steps` may use the
/// same operations.
#[derive(Clone, Debug)]
pub struct SqliteOperations {
    pool: SqlitePool,
}

impl SqliteOperations {
    /// The file of this pool. Creates the [tables](semel_steps::sql::sqlite::TABLES) if they do not
    /// exist.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or commits are not synced before they are acknowledged.
    pub async fn open(pool: SqlitePool) -> Result<Self, StoreError> {
        let synchronous: i64 =
            sqlx::query_scalar("PRAGMA synchronous").fetch_one(&pool).await.map_err(store_error)?;
        if synchronous < SYNCHRONOUS_FULL {
            let message = "commits are not synced to the disk: set `synchronous` to FULL";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        let script = format!("BEGIN IMMEDIATE; {} COMMIT", sql::TABLES);
        sqlx::raw_sql(AssertSqlSafe(script)).execute(&pool).await.map_err(store_error)?;
        Ok(Self { pool })
    }
}

/// A query for whole rows, with the times that it takes.
macro_rules! timed {
    ($sql:expr) => {
        sqlx::query($sql).bind(millis(wall())).bind(millis(since_boot())).bind(boot_id())
    };
}

/// Whether a statement changed a row.
fn fenced(changed: u64) -> Fenced {
    if changed > 0 { Fenced::Applied } else { Fenced::Lost }
}

async fn write(
    connection: &mut SqliteConnection,
    owned: OwnedOperation,
    write: &StepWrite,
    in_transaction: bool,
) -> Result<Fenced, Error> {
    let mut changed = 0;
    for row in write.noted.iter().chain([&write.own]) {
        let written = sqlx::query(sql::STEP)
            .bind(owned.id)
            .bind(owned.fence)
            .bind(&row.name)
            .bind(row.part.as_str())
            .bind(row.state.as_str())
            .bind(row.result.as_deref())
            .bind(row.position)
            .bind(in_transaction)
            .execute(&mut *connection)
            .await?;
        changed = written.rows_affected();
    }
    Ok(fenced(changed))
}

/// Begins a transaction that may write.
async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>, StoreError> {
    pool.begin_with("BEGIN IMMEDIATE").await.map_err(store_error)
}

#[async_trait]
impl OperationStore for SqliteOperations {
    type Transaction = Transaction<'static, Sqlite>;

    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError> {
        let (name, key, input) = (new.name.to_owned(), new.key.to_owned(), new.input.to_owned());
        let (pool, version, owner) = (self.pool.clone(), new.version, new.owner);
        let lease = millis(new.lease);
        run_detached(async move {
            let mut transaction = begin(&pool).await?;
            timed!(sql::START)
                .bind(&name)
                .bind(&key)
                .bind(version)
                .bind(&input)
                .bind(owner)
                .bind(lease)
                .execute(&mut *transaction)
                .await
                .map_err(store_error)?;
            let row = timed!(sql::FIND.as_str()).bind(&name).bind(&key);
            let row = row.fetch_one(&mut *transaction).await.map_err(store_error)?;
            transaction.commit().await.map_err(store_error)?;
            operation(&row).map_err(store_error)
        })
        .await
    }

    async fn step(&self, owned: OwnedOperation, rows: &StepWrite) -> Result<Fenced, StoreError> {
        let (pool, rows) = (self.pool.clone(), rows.clone());
        run_detached(async move {
            let mut transaction = begin(&pool).await?;
            let written = write(&mut transaction, owned, &rows, false).await;
            let written = written.map_err(store_error)?;
            transaction.commit().await.map_err(store_error)?;
            Ok(written)
        })
        .await
    }

    async fn begin(&self) -> Result<Self::Transaction, StoreError> {
        let pool = self.pool.clone();
        run_detached(async move { begin(&pool).await }).await
    }

    async fn commit(
        &self,
        mut transaction: Self::Transaction,
        owned: OwnedOperation,
        rows: &StepWrite,
    ) -> Result<Fenced, StoreError> {
        let rows = rows.clone();
        run_detached(async move {
            let written = write(&mut transaction, owned, &rows, true).await;
            let written = written.map_err(store_error)?;
            let ended = match written {
                Fenced::Applied => transaction.commit().await,
                Fenced::Lost => transaction.rollback().await,
            };
            ended.map_err(store_error)?;
            Ok(written)
        })
        .await
    }

    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError> {
        let turn = sqlx::query(sql::TURN).bind(owned.id).bind(owned.fence).bind(refusal);
        let done = turn.execute(&self.pool).await.map_err(store_error)?;
        Ok(fenced(done.rows_affected()))
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
            .bind(reason)
            .bind(millis(wall()));
        let done = finish.execute(&self.pool).await.map_err(store_error)?;
        Ok(fenced(done.rows_affected()))
    }

    async fn take_lapsed(
        &self,
        request: &TakeRequest<'_>,
    ) -> Result<Vec<OperationRow>, StoreError> {
        let TakeRequest { known, owner, lease, limit } = *request;
        let (pool, known) = (self.pool.clone(), sql::known_json(known));
        run_detached(async move {
            let boot = millis(since_boot());
            let due =
                || sqlx::query_scalar(sql::DUE).bind(boot).bind(boot_id()).bind(&known).bind(limit);
            let seen: Vec<i64> = due().fetch_all(&pool).await.map_err(store_error)?;
            // Most looks find nothing, and need no lock.
            if seen.is_empty() {
                return Ok(Vec::new());
            }
            let mut transaction = begin(&pool).await?;
            let due: Vec<i64> = due().fetch_all(&mut *transaction).await.map_err(store_error)?;
            let mut taken = Vec::new();
            for id in due {
                let take = sqlx::query(sql::TAKE)
                    .bind(id)
                    .bind(millis(wall()).saturating_mul(1000))
                    .bind(owner)
                    .bind(boot.saturating_add(millis(lease)))
                    .bind(boot_id());
                take.execute(&mut *transaction).await.map_err(store_error)?;
                let read = timed!(sql::READ.as_str()).bind(id);
                let row = read.fetch_one(&mut *transaction).await.map_err(store_error)?;
                taken.push(operation(&row).map_err(store_error)?);
            }
            transaction.commit().await.map_err(store_error)?;
            Ok(taken)
        })
        .await
    }

    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError> {
        let (pool, owned) = (self.pool.clone(), owned.to_vec());
        run_detached(async move {
            let until = millis(since_boot()).saturating_add(millis(lease));
            let mut transaction = begin(&pool).await?;
            let mut renewed = Vec::new();
            for OwnedOperation { id, fence } in owned {
                let renew =
                    sqlx::query(sql::RENEW).bind(id).bind(fence).bind(until).bind(boot_id());
                let done = renew.execute(&mut *transaction).await.map_err(store_error)?;
                if done.rows_affected() > 0 {
                    renewed.push(id);
                }
            }
            transaction.commit().await.map_err(store_error)?;
            Ok(renewed)
        })
        .await
    }

    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError> {
        let release = sqlx::query(sql::RELEASE)
            .bind(owned.id)
            .bind(owned.fence)
            .bind(millis(since_boot()).saturating_add(millis(release.pause)))
            .bind(release.is_counted)
            .bind(release.reason)
            .bind(boot_id());
        let done = release.execute(&self.pool).await.map_err(store_error)?;
        Ok(fenced(done.rows_affected()))
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        let row = timed!(sql::READ.as_str()).bind(id).fetch_optional(&self.pool).await;
        let row = row.map_err(store_error)?;
        row.as_ref().map(operation).transpose().map_err(store_error)
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        let rows = sqlx::query(sql::STEPS).bind(id).fetch_all(&self.pool).await;
        let rows = rows.map_err(store_error)?;
        rows.iter().map(step).collect::<Result<_, _>>().map_err(store_error)
    }

    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        let list = timed!(sql::LIST.as_str())
            .bind(filter.state.map(OperationState::as_str))
            .bind(filter.name.as_deref())
            .bind(filter.before)
            .bind(filter.limit);
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
                let done = settle.execute(&self.pool).await.map_err(store_error)?;
                return Ok(fenced(done.rows_affected()));
            }
            OperatorStep::Resume => ("resume", None),
            OperatorStep::Undo => ("undo", None),
            OperatorStep::Park(reason) => ("park", Some(reason.as_str())),
        };
        let operate = sqlx::query(sql::OPERATE)
            .bind(seen.id)
            .bind(seen.fence)
            .bind(act)
            .bind(reason)
            .bind(millis(wall()).saturating_mul(1000));
        let done = operate.execute(&self.pool).await.map_err(store_error)?;
        Ok(fenced(done.rows_affected()))
    }

    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError> {
        let before = millis(wall()).saturating_sub(millis(retention));
        let sweep = sqlx::query(sql::SWEEP).bind(before).bind(limit).execute(&self.pool).await;
        sweep.map(|done| done.rows_affected()).map_err(store_error)
    }
}

fn operation(row: &SqliteRow) -> Result<OperationRow, Error> {
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

fn step(row: &SqliteRow) -> Result<StepRow, Error> {
    Ok(StepRow {
        name: row.try_get("name")?,
        part: StepPart::parse(row.try_get("part")?).ok_or_else(|| damaged("part"))?,
        state: StepState::parse(row.try_get("state")?).ok_or_else(|| damaged("state"))?,
        result: row.try_get("result")?,
        position: row.try_get("position")?,
    })
}
