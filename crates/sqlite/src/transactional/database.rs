//! The database in the user's own file.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use async_trait::async_trait;
use rusqlite::{Connection, ErrorCode};
use semel::transactional::{
    BeginResult, ClaimFiles, Database, Entry, RecordLookup, TransactionalStore,
};
use semel_core::{Batch, Fenced, RecordId, StoreError, StoreErrorKind};
use tokio::sync::{Mutex, Semaphore};

use super::{
    SqliteTransaction, TABLE,
    connection_thread::{ConnectionThread, failure},
    rows,
    transaction::WriteConnection,
};
use crate::{
    error::store_error,
    fair_lock::{FairLock, LOCK_TIMEOUT},
    file_system::{FileSystem, refuse_network},
    open::FULL_SYNC,
    open_files::OpenFiles,
    wal::sync_to_disk,
};

/// The maximum number of open operations. More are refused.
const OPEN_OPERATIONS_MAX: usize = 1024;

/// How often opening a locked file is attempted.
const OPEN_ATTEMPTS_MAX: u32 = 20;

/// A store whose records are rows of `semel_transactional`.
pub type SqliteTransactionalStore = TransactionalStore<SqliteDatabase>;

/// Your own database file. Clones are the same.
#[derive(Clone)]
pub struct SqliteDatabase(Arc<DatabaseInner>);

struct DatabaseInner {
    path: PathBuf,
    reader: ConnectionThread,
    writer: WriteConnection,
    claims: Arc<ClaimFiles>,
    open: Arc<Semaphore>,
}

impl SqliteDatabase {
    /// Opens the file, creates it if it is missing, and creates the [table](TABLE) in it.
    ///
    /// The file gets a write-ahead log and must be on a local disk. A folder `…-claims`
    /// and a lock file `…-turn` beside it coordinate processes, which must all run as the same
    /// user.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or is not a database.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let io = |error: io::Error| {
            let message = format!("{}: {error}", path.display());
            StoreError::new(StoreErrorKind::Unavailable, message).because(error)
        };
        if let Ok(found) = FileSystem::of(path) {
            refuse_network(path, found)?;
        }
        let connection = connect(path)?;
        sync_to_disk(&connection, path)?;
        // By the target of links: the names of the other files follow from that.
        let path = fs::canonicalize(path).map_err(io)?;
        let reader =
            ConnectionThread::start("semel-transactional-read", connect(&path)?).map_err(io)?;
        let thread =
            ConnectionThread::start("semel-transactional-write", connection).map_err(io)?;
        let writer = WriteConnection {
            thread: Arc::new(Mutex::new(thread)),
            fair_lock: Arc::new(FairLock::open(&path).map_err(io)?),
            files: Arc::new(OpenFiles::at(&path).map_err(io)?),
        };
        let claims = Arc::new(ClaimFiles::open(&path).map_err(io)?);
        let open = Arc::new(Semaphore::new(OPEN_OPERATIONS_MAX));
        Ok(Self(Arc::new(DatabaseInner { path, reader, writer, claims, open })))
    }

    /// A store on it, for the engine.
    #[must_use]
    pub fn store(self) -> SqliteTransactionalStore {
        TransactionalStore::new(self)
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &ClaimFiles) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let claims = Arc::clone(&self.0.claims);
        let read = self.0.reader.call(move |connection| work(connection, &claims)).await;
        read.and_then(|read| read).map_err(|error| self.error(error))
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        store_error(&self.0.path, error)
    }
}

/// Creates the [table](TABLE) if it is missing; for programs that open their connections
/// themselves.
///
/// # Errors
///
/// If SQLite refuses.
pub fn create_table(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(TABLE)
}

/// Opens a connection for one of the two threads.
///
/// While several processes open a file at the same time, SQLite reports it as locked at once,
/// regardless of the busy timeout: the opening is retried.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let mut attempts_left = OPEN_ATTEMPTS_MAX;
    loop {
        attempts_left -= 1;
        match try_connect(path) {
            Ok((connection, mode)) if mode == "wal" => return Ok(connection),
            Ok(_) => {
                let message = format!(
                    "{}: the file cannot have a write-ahead log: put it on a local disk",
                    path.display()
                );
                return Err(StoreError::new(StoreErrorKind::Unavailable, message));
            }
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && attempts_left > 0 =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(store_error(path, error)),
        }
    }
}

fn try_connect(path: &Path) -> rusqlite::Result<(Connection, String)> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(LOCK_TIMEOUT / OPEN_ATTEMPTS_MAX)?;
    let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    // A commit is on disk before it is acknowledged.
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    connection.execute_batch(FULL_SYNC)?;
    create_table(&connection)?;
    connection.busy_timeout(LOCK_TIMEOUT)?;
    Ok((connection, mode))
}

fn claim_folder_error(error: &io::Error) -> rusqlite::Error {
    failure(rusqlite::ffi::SQLITE_CANTOPEN, &format!("the folder of claims: {error}"))
}

#[async_trait]
impl Database for SqliteDatabase {
    type Transaction = SqliteTransaction;

    async fn begin(&self, id: &RecordId) -> Result<BeginResult<SqliteTransaction>, StoreError> {
        let Ok(permit) = Arc::clone(&self.0.open).try_acquire_owned() else {
            let message = "too many operations are open: try again later";
            return Err(StoreError::new(StoreErrorKind::Busy, message));
        };
        let (id, writer) = (id.clone(), self.0.writer.clone());
        self.read(move |connection, claims| {
            if let Some(found) = rows::lookup(connection, &id)? {
                return Ok(BeginResult::Recorded(found));
            }
            let Some(claim) = claims.take(&id).map_err(|error| claim_folder_error(&error))? else {
                return Ok(BeginResult::Running);
            };
            // The previous owner committed before it released the claim.
            if let Some(found) = rows::lookup(connection, &id)? {
                return Ok(BeginResult::Recorded(found));
            }
            let transaction = SqliteTransaction::new(writer, claim, permit);
            Ok(BeginResult::Free { transaction, fence: rows::next_fence()? })
        })
        .await
    }

    async fn commit(
        &self,
        transaction: SqliteTransaction,
        entry: &Entry<'_>,
    ) -> Result<Fenced, StoreError> {
        transaction.commit(entry).await.map_err(|failed| {
            let error = self.error(failed.error);
            if failed.may_have_happened { error.effect_unknown() } else { error }
        })
    }

    async fn roll_back(&self, transaction: SqliteTransaction) {
        drop(transaction);
    }

    async fn look_up(&self, id: &RecordId) -> Result<RecordLookup, StoreError> {
        let id = id.clone();
        self.read(move |connection, claims| {
            // In this order: an operation that ends in between has committed its record.
            let running = claims.is_taken(&id).map_err(|error| claim_folder_error(&error))?;
            Ok(match rows::lookup(connection, &id)? {
                Some(found) => RecordLookup::Recorded(found),
                None if running => RecordLookup::Running,
                None => RecordLookup::Absent,
            })
        })
        .await
    }

    async fn sweep(&self, limit: u32) -> Result<Batch, StoreError> {
        let thread = self.0.writer.lock().await.map_err(|error| self.error(error))?;
        let swept = thread.call(move |connection| rows::sweep(connection, limit)).await;
        swept.and_then(|swept| swept).map_err(|error| self.error(error))
    }
}

impl fmt::Debug for SqliteDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqliteDatabase").field(&self.0.path).finish()
    }
}
