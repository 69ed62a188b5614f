//! Operations in an SQLite file, on rusqlite.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Row, TransactionBehavior, params};
use semel_core::{Fenced, StoreError, StoreErrorKind};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    task::spawn_blocking,
};

use crate::{
    clock::{boot_id, millis, since_boot, wall},
    sql::sqlite as sql,
    store::{
        Direction, NewOperation, OperationEnd, OperationFilter, OperationRow, OperationState,
        OperationStore, OperatorStep, OwnedOperation, ReleaseRequest, StepPart, StepRow, StepState,
        StepWrite, TakeRequest,
    },
};

/// The time that a write waits for another connection's.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The tables, for a migration of your own. It may be run again.
pub const TABLES: &str = sql::TABLES;

/// Your own SQLite file, on one connection of its own. Clones are the same.
#[derive(Clone)]
pub struct SqliteOperations(Arc<Mutex<Connection>>);

impl SqliteOperations {
    /// Opens the file, creates it if it is missing, and creates the [tables](TABLES) in it. The
    /// file gets a write-ahead log.
    ///
    /// All processes that use the file run on one machine.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is not a database.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let open = || {
            let connection = Connection::open(path)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            // In a write-ahead log only this makes a commit durable.
            connection.pragma_update(None, "synchronous", "FULL")?;
            connection.execute_batch(&format!("BEGIN IMMEDIATE; {TABLES} COMMIT"))?;
            Ok(connection)
        };
        Ok(Self(Arc::new(Mutex::new(open().map_err(store_error)?))))
    }

    /// Runs this on the connection, to its end even if the caller stops waiting.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut connection = Arc::clone(&self.0).lock_owned().await;
        let done = spawn_blocking(move || work(&mut connection)).await;
        done.map_err(cancelled)?.map_err(store_error)
    }

    /// Runs one statement that changes a row or none.
    async fn update<P>(&self, sql: &'static str, parameters: P) -> Result<Fenced, StoreError>
    where
        P: rusqlite::Params + Send + 'static,
    {
        let changed =
            self.call(move |connection| connection.prepare_cached(sql)?.execute(parameters));
        Ok(if changed.await? > 0 { Fenced::Applied } else { Fenced::Lost })
    }
}

/// An open transaction of a step. Dropping it rolls everything back.
///
/// It has the one connection of the process: do slow work, such as a call to a service, in a step
/// of its own.
pub struct SqliteStepTransaction {
    /// `None` only after the end.
    connection: Option<OwnedMutexGuard<Connection>>,
}

impl SqliteStepTransaction {
    /// Reads and writes on the connection.
    ///
    /// # Errors
    ///
    /// What the work returns, or that an earlier call was cancelled.
    pub async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> rusqlite::Result<T> {
        let Some(connection) = self.connection.take() else {
            let message = "an earlier call on this transaction was cancelled".to_owned();
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_ABORT);
            return Err(rusqlite::Error::SqliteFailure(code, Some(message)));
        };
        let inner = Self { connection: Some(connection) };
        let ran = spawn_blocking(move || {
            let done = inner.connection.as_ref().map(|connection| work(connection));
            (inner, done)
        });
        match ran.await {
            Ok((mut inner, Some(done))) => {
                self.connection = inner.connection.take();
                done
            }
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok((_, None)) | Err(_) => Err(rusqlite::Error::InvalidQuery),
        }
    }
}

impl Drop for SqliteStepTransaction {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            // An error means that SQLite has rolled back already.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }
}

impl fmt::Debug for SqliteStepTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStepTransaction").finish_non_exhaustive()
    }
}

/// Writes rows; whether the row of the step itself was written.
fn write(
    connection: &Connection,
    owned: OwnedOperation,
    write: &StepWrite,
    in_transaction: bool,
) -> rusqlite::Result<Fenced> {
    let mut statement = connection.prepare_cached(sql::STEP)?;
    let mut put = |row: &StepRow| {
        let StepRow { name, part, state, result, position } = row;
        let (part, state) = (part.as_str(), state.as_str());
        statement.execute(params![
            owned.id,
            owned.fence,
            name,
            part,
            state,
            result,
            position,
            in_transaction
        ])
    };
    for row in &write.noted {
        put(row)?;
    }
    Ok(if put(&write.own)? > 0 { Fenced::Applied } else { Fenced::Lost })
}

/// The times that statements take: the wall clock, the time since the start, and which start.
fn now() -> (i64, i64, &'static str) {
    (millis(wall()), millis(since_boot()), boot_id())
}

#[async_trait]
impl OperationStore for SqliteOperations {
    type Transaction = SqliteStepTransaction;

    async fn start(&self, new: &NewOperation<'_>) -> Result<OperationRow, StoreError> {
        let NewOperation { name, version, key, input, owner, lease } = *new;
        let (name, key, input) = (name.to_owned(), key.to_owned(), input.to_owned());
        self.call(move |connection| {
            let (wall, boot, boot_id) = now();
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let lease = millis(lease);
            transaction
                .prepare_cached(sql::START)?
                .execute(params![wall, boot, boot_id, name, key, version, input, owner, lease])?;
            let row = transaction
                .prepare_cached(&sql::FIND)?
                .query_row(params![wall, boot, boot_id, name, key], operation)?;
            transaction.commit()?;
            Ok(row)
        })
        .await
    }

    async fn step(&self, owned: OwnedOperation, rows: &StepWrite) -> Result<Fenced, StoreError> {
        let rows = rows.clone();
        self.call(move |connection| {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let written = write(&transaction, owned, &rows, false)?;
            transaction.commit()?;
            Ok(written)
        })
        .await
    }

    async fn begin(&self) -> Result<SqliteStepTransaction, StoreError> {
        let connection = Arc::clone(&self.0).lock_owned().await;
        let begun = spawn_blocking(move || {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            Ok(SqliteStepTransaction { connection: Some(connection) })
        });
        begun.await.map_err(cancelled)?.map_err(store_error)
    }

    async fn commit(
        &self,
        mut transaction: SqliteStepTransaction,
        owned: OwnedOperation,
        rows: &StepWrite,
    ) -> Result<Fenced, StoreError> {
        let rows = rows.clone();
        let written = transaction.run(move |connection| {
            let written = write(connection, owned, &rows, true)?;
            if written == Fenced::Applied {
                connection.execute_batch("COMMIT")?;
            }
            Ok(written)
        });
        let written = written.await.map_err(store_error)?;
        if written == Fenced::Applied {
            transaction.connection = None;
        }
        Ok(written)
    }

    async fn turn(&self, owned: OwnedOperation, refusal: &str) -> Result<Fenced, StoreError> {
        self.update(sql::TURN, (owned.id, owned.fence, refusal.to_owned())).await
    }

    async fn finish(
        &self,
        owned: OwnedOperation,
        end: &OperationEnd,
    ) -> Result<Fenced, StoreError> {
        let (state, result, reason) = end.columns();
        let (result, reason) = (result.map(str::to_owned), reason.map(str::to_owned));
        let wall = millis(wall());
        let parameters = (owned.id, owned.fence, state.as_str(), result, reason, wall);
        self.update(sql::FINISH, parameters).await
    }

    async fn take_lapsed(
        &self,
        request: &TakeRequest<'_>,
    ) -> Result<Vec<OperationRow>, StoreError> {
        let TakeRequest { known, owner, lease, limit } = *request;
        let known = sql::known_json(known);
        self.call(move |connection| {
            let (wall, boot, boot_id) = now();
            let due = |connection: &Connection| -> rusqlite::Result<Vec<i64>> {
                let mut due = connection.prepare_cached(sql::DUE)?;
                let ids = due.query_map(params![boot, boot_id, known, limit], |row| row.get(0))?;
                ids.collect()
            };
            // Most looks find nothing, and need no lock.
            if due(connection)?.is_empty() {
                return Ok(Vec::new());
            }
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut taken = Vec::new();
            for id in due(&transaction)? {
                let (fence, lease) =
                    (wall.saturating_mul(1000), boot.saturating_add(millis(lease)));
                transaction
                    .prepare_cached(sql::TAKE)?
                    .execute(params![id, fence, owner, lease, boot_id])?;
                let mut read = transaction.prepare_cached(&sql::READ)?;
                taken.push(read.query_row(params![wall, boot, boot_id, id], operation)?);
            }
            transaction.commit()?;
            Ok(taken)
        })
        .await
    }

    async fn renew(
        &self,
        owned: &[OwnedOperation],
        lease: Duration,
    ) -> Result<Vec<i64>, StoreError> {
        let owned = owned.to_vec();
        self.call(move |connection| {
            let (_, boot, boot_id) = now();
            let until = boot.saturating_add(millis(lease));
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let mut renewed = Vec::new();
            for OwnedOperation { id, fence } in owned {
                let mut renew = transaction.prepare_cached(sql::RENEW)?;
                if renew.execute(params![id, fence, until, boot_id])? > 0 {
                    renewed.push(id);
                }
            }
            transaction.commit()?;
            Ok(renewed)
        })
        .await
    }

    async fn release(
        &self,
        owned: OwnedOperation,
        release: &ReleaseRequest<'_>,
    ) -> Result<Fenced, StoreError> {
        let (_, boot, boot_id) = now();
        let until = boot.saturating_add(millis(release.pause));
        let reason = release.reason.map(str::to_owned);
        let parameters = (owned.id, owned.fence, until, release.is_counted, reason, boot_id);
        self.update(sql::RELEASE, parameters).await
    }

    async fn read(&self, id: i64) -> Result<Option<OperationRow>, StoreError> {
        self.call(move |connection| {
            let (wall, boot, boot_id) = now();
            let mut read = connection.prepare_cached(&sql::READ)?;
            read.query_row(params![wall, boot, boot_id, id], operation).optional()
        })
        .await
    }

    async fn steps(&self, id: i64) -> Result<Vec<StepRow>, StoreError> {
        self.call(move |connection| {
            let mut steps = connection.prepare_cached(sql::STEPS)?;
            steps.query_map([id], step)?.collect()
        })
        .await
    }

    async fn list(&self, filter: &OperationFilter) -> Result<Vec<OperationRow>, StoreError> {
        let OperationFilter { state, name, before, limit } = filter.clone();
        self.call(move |connection| {
            let (wall, boot, boot_id) = now();
            let state = state.map(OperationState::as_str);
            let mut list = connection.prepare_cached(&sql::LIST)?;
            let parameters = params![wall, boot, boot_id, state, name, before, limit];
            list.query_map(parameters, operation)?.collect()
        })
        .await
    }

    async fn operate(
        &self,
        seen: OwnedOperation,
        act: &OperatorStep,
    ) -> Result<Fenced, StoreError> {
        let OwnedOperation { id, fence } = seen;
        let (act, reason) = match act {
            OperatorStep::Settle { step, result } => {
                let parameters = (id, fence, step.clone(), result.clone());
                return self.update(sql::SETTLE, parameters).await;
            }
            OperatorStep::Resume => ("resume", None),
            OperatorStep::Undo => ("undo", None),
            OperatorStep::Park(reason) => ("park", Some(reason.clone())),
        };
        let first = millis(wall()).saturating_mul(1000);
        self.update(sql::OPERATE, (id, fence, act, reason, first)).await
    }

    async fn sweep(&self, retention: Duration, limit: u32) -> Result<u64, StoreError> {
        let before = millis(wall()).saturating_sub(millis(retention));
        self.call(move |connection| {
            let swept = connection.prepare_cached(sql::SWEEP)?.execute(params![before, limit])?;
            Ok(u64::try_from(swept).unwrap_or_default())
        })
        .await
    }
}

fn operation(row: &Row<'_>) -> rusqlite::Result<OperationRow> {
    Ok(OperationRow {
        id: row.get("id")?,
        name: row.get("name")?,
        version: row.get("version")?,
        key: row.get("key")?,
        input: row.get("input")?,
        fence: row.get("fence")?,
        owner: row.get("owner")?,
        direction: known(row, "direction", Direction::parse)?,
        state: known(row, "state", OperationState::parse)?,
        attempt: row.get("attempt")?,
        result: row.get("result")?,
        refusal: row.get("refusal")?,
        reason: row.get("reason")?,
        age_ms: row.get("age_ms")?,
        lease_ms: row.get("lease_ms")?,
    })
}

fn step(row: &Row<'_>) -> rusqlite::Result<StepRow> {
    Ok(StepRow {
        name: row.get("name")?,
        part: known(row, "part", StepPart::parse)?,
        state: known(row, "state", StepState::parse)?,
        result: row.get("result")?,
        position: row.get("position")?,
    })
}

/// Reads the text of a state.
fn known<T>(row: &Row<'_>, name: &str, parse: fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let column = row.as_ref().column_index(name)?;
    let text: String = row.get(column)?;
    parse(&text).ok_or_else(|| {
        let error = format!("{name} in the table cannot be read");
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error.into())
    })
}

/// The error of a transaction. A failed commit of SQLite has no effect, except when the disk
/// failed.
fn store_error(error: rusqlite::Error) -> StoreError {
    use StoreErrorKind::{Corrupt, Full, ReadOnly, Unavailable};
    let code = error.sqlite_error_code();
    let (kind, advice) = match code {
        Some(ErrorCode::DiskFull) => (Full, "the disk is full: free space"),
        Some(ErrorCode::ReadOnly) => (ReadOnly, "the file or its folder cannot be written"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (Corrupt, "the file is damaged, or is not a SQLite database")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Unavailable, "another process keeps the file locked")
        }
        _ => (Unavailable, "SQLite refused the statement"),
    };
    let found = StoreError::new(kind, format!("{advice} ({error})")).because(error);
    if code == Some(ErrorCode::SystemIoFailure) { found.effect_unknown() } else { found }
}

fn cancelled(error: tokio::task::JoinError) -> StoreError {
    let message = "the work on the file was cancelled";
    StoreError::new(StoreErrorKind::Unavailable, message).because(error).effect_unknown()
}

impl fmt::Debug for SqliteOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOperations").finish_non_exhaustive()
    }
}
