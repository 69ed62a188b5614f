//! The database behind a pool of connections, and its transactions.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use semel::{
    core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind},
    transactional::{BeginResult, Database, Entry, RecordLookup, Recorded, TransactionalStore},
};
use sqlx::{Error, Executor as _, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::timeout,
};

use super::{
    TABLE,
    claims::{OperationClaim, OperationClaims},
    rows,
};
use crate::{
    detached::{DetachedEntry, run_detached},
    error::{is_locked, store_error},
};

/// How long an operation waits for the operations before it.
const WRITE_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// `PRAGMA synchronous`: a commit is on disk before it is acknowledged.
const SYNCHRONOUS_FULL: i64 = 2;

/// A store whose records are rows of `semel_transactional`.
pub type SqliteTransactionalStore = TransactionalStore<SqliteDatabase>;

/// Your own database file, through the pool of your program. Clones share it.
#[derive(Clone, Debug)]
pub struct SqliteDatabase {
    pool: SqlitePool,
    claims: OperationClaims,
    /// One operation writes at a time. Those that wait here hold no connection.
    write_lock: Arc<Mutex<()>>,
}

impl SqliteDatabase {
    /// The database of this pool. Creates the [table](TABLE) if it is missing.
    ///
    /// A folder `…-claims` beside the file holds the claims of operations, those of other processes
    /// and of `semel-sqlite` included. All of them must run as the same user. An in-memory database
    /// is for one process: open it once.
    ///
    /// # Errors
    ///
    /// If the file or its folder cannot be written, or commits are not synced before they are
    /// acknowledged.
    pub async fn open(pool: SqlitePool) -> Result<Self, StoreError> {
        create_table(&pool).await?;
        let synced = sqlx::query_scalar::<_, i64>("PRAGMA synchronous").fetch_one(&pool).await;
        if synced.map_err(store_error)? < SYNCHRONOUS_FULL {
            let message = "commits are not synced: connect with SqliteSynchronous::Full";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        require_full_sync(&pool).await?;
        let claims = OperationClaims::open(file_of(&pool).await?).await?;
        Ok(Self { pool, claims, write_lock: Arc::default() })
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> SqliteTransactionalStore {
        TransactionalStore::new(self)
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    async fn find_record(&self, id: &RecordId) -> Result<Option<Recorded>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::lookup(&mut connection, id).await.map_err(store_error)
    }

    async fn write_lock(&self) -> Result<OwnedMutexGuard<()>, StoreError> {
        timeout(WRITE_LOCK_TIMEOUT, Arc::clone(&self.write_lock).lock_owned()).await.map_err(|_| {
            let message = "other operations keep the file locked: try again later";
            StoreError::new(StoreErrorKind::Busy, message)
        })
    }
}

/// The full path of a database; empty for an in-memory one.
async fn file_of(pool: &SqlitePool) -> Result<String, StoreError> {
    let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
    let file: Option<String> =
        sqlx::query_scalar(file).fetch_one(pool).await.map_err(store_error)?;
    Ok(file.unwrap_or_default())
}

/// On macOS a plain sync leaves data in the cache of the disk, where a power cut loses it.
#[cfg(target_vendor = "apple")]
async fn require_full_sync(pool: &SqlitePool) -> Result<(), StoreError> {
    let full = sqlx::query_scalar::<_, i64>("PRAGMA fullfsync").fetch_one(pool).await;
    if full.map_err(store_error)? == 0 {
        let message = "commits may stay in the cache of the disk: connect with \
                       .pragma(\"fullfsync\", \"1\")";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
#[expect(clippy::unused_async, reason = "it queries the database on macOS")]
async fn require_full_sync(_: &SqlitePool) -> Result<(), StoreError> {
    Ok(())
}

/// Creates the [table](TABLE) if it is missing.
///
/// # Errors
///
/// If the file cannot be written.
pub async fn create_table(pool: &SqlitePool) -> Result<(), StoreError> {
    sqlx::raw_sql(TABLE).execute(pool).await.map(drop).map_err(store_error)
}

/// An open transaction, through which an operation writes: a connection of sqlx. A transaction that
/// begins on it is a savepoint.
///
/// Dropping it rolls everything back.
pub struct SqliteTransaction {
    // In this order: the rollback comes before the release of the locks.
    transaction: Transaction<'static, Sqlite>,
    _write_lock: OwnedMutexGuard<()>,
    _claim: OperationClaim,
}

impl Deref for SqliteTransaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.transaction
    }
}

impl DerefMut for SqliteTransaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.transaction
    }
}

impl fmt::Debug for SqliteTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteTransaction").finish_non_exhaustive()
    }
}

impl SqliteDatabase {
    async fn begin_here(
        &self,
        id: &RecordId,
    ) -> Result<BeginResult<SqliteTransaction>, StoreError> {
        // A repeat of a recorded operation need not wait for writers.
        if let Some(found) = self.find_record(id).await? {
            return Ok(BeginResult::Recorded(found));
        }
        let Some(claim) = self.claims.take(id).await? else { return Ok(BeginResult::Running) };
        let write_lock = self.write_lock().await?;
        let begun = self.pool.begin_with("BEGIN IMMEDIATE").await;
        let mut transaction = begun.map_err(store_error)?;
        // The previous owner of the claim has committed.
        if let Some(found) = rows::lookup(&mut transaction, id).await.map_err(store_error)? {
            transaction.rollback().await.map_err(store_error)?;
            return Ok(BeginResult::Recorded(found));
        }
        // The savepoint is gone at the end if the operation ended the transaction itself.
        transaction.execute("SAVEPOINT semel_transactional").await.map_err(store_error)?;
        let fence = rows::next_fence().map_err(store_error)?;
        let transaction = SqliteTransaction { transaction, _write_lock: write_lock, _claim: claim };
        Ok(BeginResult::Free { transaction, fence })
    }
}

async fn commit(transaction: SqliteTransaction, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
    let SqliteTransaction { mut transaction, _write_lock, _claim } = transaction;
    let recorded = match transaction.execute("RELEASE semel_transactional").await {
        Ok(_) => rows::record(&mut transaction, entry).await,
        Err(_) => Ok(Fenced::Lost),
    };
    match recorded {
        Ok(Fenced::Applied) => {}
        recorded => {
            let _ = transaction.rollback().await;
            return recorded.map_err(store_error);
        }
    }
    match transaction.commit().await {
        Ok(()) => Ok(Fenced::Applied),
        Err(error) if is_certain(&error) => Err(store_error(error)),
        Err(error) => Err(store_error(error).effect_unknown()),
    }
}

#[async_trait]
impl Database for SqliteDatabase {
    type Transaction = SqliteTransaction;

    async fn begin(&self, id: &RecordId) -> Result<BeginResult<SqliteTransaction>, StoreError> {
        let (database, id) = (self.clone(), id.clone());
        run_detached(async move { database.begin_here(&id).await }).await
    }

    async fn commit(
        &self,
        transaction: SqliteTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let entry = DetachedEntry::of(entry);
        run_detached(async move { commit(transaction, &entry.entry()).await }).await
    }

    async fn roll_back(&self, transaction: SqliteTransaction) {
        let SqliteTransaction { transaction, _write_lock, _claim } = transaction;
        let _ = transaction.rollback().await;
    }

    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError> {
        // In this order: an operation that ends in between has committed its record.
        let running = self.claims.is_taken(id).await?;
        Ok(match self.find_record(id).await? {
            Some(found) => RecordLookup::Recorded(found),
            None if running => RecordLookup::Running,
            None => RecordLookup::Absent,
        })
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let _write_lock = self.write_lock().await?;
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::sweep(&mut connection, limit).await.map_err(store_error)
    }
}

/// Whether a failed commit certainly has no effect: it was refused by a deferred constraint or a
/// lock, not by the disk.
fn is_certain(error: &Error) -> bool {
    let refused = error.as_database_error().is_some_and(|error| {
        error.is_foreign_key_violation()
            || error.is_unique_violation()
            || error.is_check_violation()
    });
    refused || is_locked(error)
}
