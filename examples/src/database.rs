//! A database of an example's own, beside the store.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::task::{JoinError, spawn_blocking};

/// How long a write waits for another process that writes.
pub(crate) const BUSY: Duration = Duration::from_secs(3);

/// A SQLite file. Clones share the connection.
#[derive(Clone, Debug)]
pub(crate) struct Database(Arc<Mutex<Connection>>);

impl Database {
    /// Opens the file, or makes it.
    pub(crate) fn open(path: &Path, schema: &str) -> rusqlite::Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.execute_batch(schema)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// One transaction, on a thread that may wait for the disk. An error takes everything back.
    pub(crate) async fn write<T, E>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<rusqlite::Error> + From<JoinError> + Send + 'static,
    {
        let shared = Arc::clone(&self.0);
        spawn_blocking(move || {
            let mut connection = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let writing = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&writing)?;
            writing.commit()?;
            Ok(done)
        })
        .await?
    }
}
