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
    joint::{Begun, Database, Entry, JointStore, Recorded, Seen},
};
use sqlx::{Error, Executor as _, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::{
    sync::{Mutex, OwnedMutexGuard},
    time::timeout,
};

use super::{
    TABLE,
    claims::{Claim, Claims},
    rows,
};
use crate::{
    apart::{Kept, apart},
    error::{is_locked, store_error},
};

/// How long the operations before this one are waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// `PRAGMA synchronous`: a commit is on disk before it is acknowledged.
const FULL: i64 = 2;

/// A store whose records are rows of `semel_joint`.
pub type SqliteStore = JointStore<SqliteDatabase>;

/// Your own database file, by the pool that your program has anyway. Clones are the same.
#[derive(Clone, Debug)]
pub struct SqliteDatabase {
    pool: SqlitePool,
    claims: Claims,
    /// One writes at a time: whoever waits here needs no connection for it.
    turn: Arc<Mutex<()>>,
}

impl SqliteDatabase {
    /// The database of this pool, in which the [table](TABLE) is made if it is not there.
    ///
    /// Beside a file comes a folder `…-claims`, by which operations know of each other, those of
    /// other processes and of `semel-sqlite` included. All of them must run as the same user. A
    /// database in memory is for one process: open it once.
    ///
    /// # Errors
    ///
    /// If the file or its folder cannot be written, or commits are not synced before they are
    /// acknowledged.
    pub async fn open(pool: SqlitePool) -> Result<Self, StoreError> {
        create_table(&pool).await?;
        let synced = sqlx::query_scalar::<_, i64>("PRAGMA synchronous").fetch_one(&pool).await;
        if synced.map_err(store_error)? < FULL {
            let message = "commits are not synced: connect with SqliteSynchronous::Full";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        refuse_half_syncs(&pool).await?;
        let claims = Claims::open(file_of(&pool).await?).await?;
        Ok(Self { pool, claims, turn: Arc::default() })
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> SqliteStore {
        JointStore::new(self)
    }

    /// The pool.
    #[must_use]
    pub const fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    async fn found(&self, id: &RecordId) -> Result<Option<Recorded>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::look(&mut connection, id).await.map_err(store_error)
    }

    async fn turn(&self) -> Result<OwnedMutexGuard<()>, StoreError> {
        timeout(PATIENCE, Arc::clone(&self.turn).lock_owned()).await.map_err(|_| {
            let message = "other operations keep the file to themselves: try again later";
            StoreError::new(StoreErrorKind::Busy, message)
        })
    }
}

/// The file of a database by its whole name; empty for one in memory.
async fn file_of(pool: &SqlitePool) -> Result<String, StoreError> {
    let file = "SELECT file FROM pragma_database_list WHERE name = 'main'";
    let file: Option<String> =
        sqlx::query_scalar(file).fetch_one(pool).await.map_err(store_error)?;
    Ok(file.unwrap_or_default())
}

/// On macOS a plain sync leaves data in the cache of the disk, where a power cut loses it.
#[cfg(target_vendor = "apple")]
async fn refuse_half_syncs(pool: &SqlitePool) -> Result<(), StoreError> {
    let full = sqlx::query_scalar::<_, i64>("PRAGMA fullfsync").fetch_one(pool).await;
    if full.map_err(store_error)? == 0 {
        let message = "commits may stay in the cache of the disk: connect with \
                       .pragma(\"fullfsync\", \"1\")";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    Ok(())
}

#[cfg(not(target_vendor = "apple"))]
#[expect(clippy::unused_async, reason = "it asks the database elsewhere")]
async fn refuse_half_syncs(_: &SqlitePool) -> Result<(), StoreError> {
    Ok(())
}

/// Makes the [table](TABLE) if it is not there.
///
/// # Errors
///
/// If the file cannot be written.
pub async fn create_table(pool: &SqlitePool) -> Result<(), StoreError> {
    sqlx::raw_sql(TABLE).execute(pool).await.map(drop).map_err(store_error)
}

/// An open transaction, through which an operation writes: a connection, as sqlx has it. What is
/// begun on it is a savepoint.
///
/// Whoever drops it undoes everything.
pub struct SqliteTransaction {
    // In this order: it is rolled back before others have their turn.
    transaction: Transaction<'static, Sqlite>,
    _turn: OwnedMutexGuard<()>,
    _claim: Claim,
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
    async fn begin_here(&self, id: &RecordId) -> Result<Begun<SqliteTransaction>, StoreError> {
        // Who repeats what is done need not wait for those who write.
        if let Some(found) = self.found(id).await? {
            return Ok(Begun::Recorded(found));
        }
        let Some(claim) = self.claims.take(id).await? else { return Ok(Begun::Running) };
        let turn = self.turn().await?;
        let begun = self.pool.begin_with("BEGIN IMMEDIATE").await;
        let mut transaction = begun.map_err(store_error)?;
        // Whoever had it before has committed by now.
        if let Some(found) = rows::look(&mut transaction, id).await.map_err(store_error)? {
            transaction.rollback().await.map_err(store_error)?;
            return Ok(Begun::Recorded(found));
        }
        // Gone at the end if somebody ended the transaction meanwhile.
        transaction.execute("SAVEPOINT semel_joint").await.map_err(store_error)?;
        let fence = rows::next_fence().map_err(store_error)?;
        let transaction = SqliteTransaction { transaction, _turn: turn, _claim: claim };
        Ok(Begun::Free { transaction, fence })
    }
}

async fn commit(transaction: SqliteTransaction, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
    let SqliteTransaction { mut transaction, _turn, _claim } = transaction;
    let recorded = match transaction.execute("RELEASE semel_joint").await {
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

    async fn begin(&self, id: &RecordId) -> Result<Begun<SqliteTransaction>, StoreError> {
        let (database, id) = (self.clone(), id.clone());
        apart(async move { database.begin_here(&id).await }).await
    }

    async fn commit(
        &self,
        transaction: SqliteTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        let kept = Kept::of(entry);
        apart(async move { commit(transaction, &kept.entry()).await }).await
    }

    async fn roll_back(&self, transaction: SqliteTransaction) {
        let SqliteTransaction { transaction, _turn, _claim } = transaction;
        let _ = transaction.rollback().await;
    }

    async fn look(&self, id: &RecordId) -> Result<Seen, StoreError> {
        // In this order: whoever ends in between has left a record by then.
        let running = self.claims.is_taken(id).await?;
        Ok(match self.found(id).await? {
            Some(found) => Seen::Recorded(found),
            None if running => Seen::Running,
            None => Seen::Absent,
        })
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let _turn = self.turn().await?;
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        rows::sweep(&mut connection, limit).await.map_err(store_error)
    }
}

/// Whether a commit that failed has not happened: it was refused, by a deferred constraint or a
/// lock, and not by the disk.
fn is_certain(error: &Error) -> bool {
    let refused = error.as_database_error().is_some_and(|error| {
        error.is_foreign_key_violation()
            || error.is_unique_violation()
            || error.is_check_violation()
    });
    refused || is_locked(error)
}
