//! A transaction that the user has opened.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use semel::{
    core::{Fenced, RecordId, StoreError},
    transactional::{BeginResult, Entry, UserTransaction},
};
use sqlx::{Executor as _, SqliteConnection};

use super::rows;
use crate::error::{is_locked, store_error};

/// A transaction of your own, for [`InTransaction`](semel::transactional::InTransaction).
///
/// ```
/// use semel::{core::{Caller, Key, Scope}, transactional::InTransaction};
/// use semel_sqlx::sqlite::{self, SqliteUserTransaction as Transaction};
/// use sqlx::SqlitePool;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}?mode=rwc", folder.path().join("shop.db").display());
/// let pool = SqlitePool::connect(&url).await?;
/// sqlite::create_table(&pool).await?;
/// # sqlx::query("CREATE TABLE stock (pieces INTEGER)").execute(&pool).await?;
/// # sqlx::query("INSERT INTO stock VALUES (9)").execute(&pool).await?;
///
/// for _ in 0..3 {
///     let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
///     let (scope, caller) = (Scope::new("shipments")?, Caller::new("shop-3")?);
///     let left = InTransaction::new(scope, caller, Key::new("o-17")?)
///         .fingerprint(&("o-17", 2))
///         .run(&mut Transaction::of(&mut transaction), async |tx: &mut Transaction<'_>| {
///             let sql = "UPDATE stock SET pieces = pieces - 2 RETURNING pieces";
///             Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await?)
///         })
///         .await?;
///     transaction.commit().await?;
///     assert_eq!(left.into_value(), Some(7));
/// }
/// # Ok(())
/// # }
/// ```
///
/// It takes the file's only write lock, if the transaction does not have it yet. While another
/// connection has the lock, it waits for the connection's busy timeout. Then the outcome is
/// [`InProgress`](semel::Outcome::InProgress), whatever the other connection does.
pub struct SqliteUserTransaction<'a>(&'a mut SqliteConnection);

impl<'a> SqliteUserTransaction<'a> {
    /// Records are added to this transaction.
    #[must_use]
    pub const fn of(transaction: &'a mut SqliteConnection) -> Self {
        Self(transaction)
    }
}

impl Deref for SqliteUserTransaction<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.0
    }
}

impl DerefMut for SqliteUserTransaction<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.0
    }
}

impl UserTransaction for SqliteUserTransaction<'_> {
    async fn take(&mut self, id: &RecordId) -> Result<BeginResult<()>, StoreError> {
        // Takes the write lock: no other connection can write before the transaction ends.
        match rows::drop_expired(self, id).await {
            Ok(()) => {}
            Err(error) if is_locked(&error) => return Ok(BeginResult::Running),
            Err(error) => return Err(store_error(error)),
        }
        if let Some(found) = rows::lookup(self, id).await.map_err(store_error)? {
            return Ok(BeginResult::Recorded(found));
        }
        let fence = rows::next_fence().map_err(store_error)?;
        Ok(BeginResult::Free { transaction: (), fence })
    }

    async fn mark(&mut self) -> Result<(), StoreError> {
        self.execute("SAVEPOINT semel_transactional").await.map(drop).map_err(store_error)
    }

    async fn keep(&mut self) -> Result<(), StoreError> {
        self.execute("RELEASE semel_transactional").await.map(drop).map_err(store_error)
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        self.execute("ROLLBACK TO semel_transactional").await.map_err(store_error)?;
        self.keep().await
    }

    async fn record(&mut self, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
        rows::record(self, entry).await.map_err(store_error)
    }
}

impl fmt::Debug for SqliteUserTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteUserTransaction").finish_non_exhaustive()
    }
}
