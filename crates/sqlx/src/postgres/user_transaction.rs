//! A transaction that the user has opened.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use semel::{
    core::{Fenced, RecordId, StoreError},
    transactional::{BeginResult, Entry, UserTransaction},
};
use sqlx::{Executor as _, PgConnection};

use super::{
    database::refused,
    rows::{self, OperationLock},
};
use crate::error::store_error;

/// A transaction of your own, for [`InTransaction`](semel::transactional::InTransaction).
///
/// ```no_run
/// use semel::{Outcome, core::{Caller, Key, Scope}, transactional::InTransaction};
/// use semel_sqlx::postgres::PgUserTransaction;
/// use sqlx::PgPool;
///
/// # async fn ship(pool: &PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// let (scope, caller) = (Scope::new("shipments")?, Caller::new("shop-3")?);
/// let shipped = InTransaction::new(scope, caller, Key::new("o-17")?)
///     .fingerprint(&("o-17", 2))
///     .run(&mut PgUserTransaction::of(&mut transaction), async |tx: &mut PgUserTransaction<'_>| {
///         let sql = "UPDATE stock SET pieces = pieces - 2 WHERE id = 17 RETURNING pieces";
///         Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await?)
///     })
///     .await?;
/// transaction.commit().await?;
/// if let Outcome::Ran(left) | Outcome::Replayed(left) = shipped {
///     println!("{left} pieces were left then");
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Isolation
///
/// Use `read committed`, which is the default of PostgreSQL. Above it your transaction has a
/// snapshot that is older than the lock of the operation. An operation that another transaction
/// has committed since then is not seen: it runs a second time, to its end, and then the primary
/// key refuses its record and everything that it wrote is undone. What it did outside of the
/// database is not.
pub struct PgUserTransaction<'a> {
    connection: &'a mut PgConnection,
    held: OperationLock,
}

impl<'a> PgUserTransaction<'a> {
    /// Records are added to this transaction.
    #[must_use]
    pub const fn of(transaction: &'a mut PgConnection) -> Self {
        Self { connection: transaction, held: OperationLock::NONE }
    }
}

impl Deref for PgUserTransaction<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.connection
    }
}

impl DerefMut for PgUserTransaction<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.connection
    }
}

impl UserTransaction for PgUserTransaction<'_> {
    async fn take(&mut self, id: &RecordId) -> Result<BeginResult<()>, StoreError> {
        Ok(match rows::take(self, id).await.map_err(store_error)? {
            BeginResult::Free { transaction: held, fence } => {
                self.held = held;
                BeginResult::Free { transaction: (), fence }
            }
            BeginResult::Running => BeginResult::Running,
            BeginResult::Recorded(found) => BeginResult::Recorded(found),
        })
    }

    async fn mark(&mut self) -> Result<(), StoreError> {
        self.execute("SAVEPOINT semel_transactional").await.map(drop).map_err(store_error)
    }

    async fn keep(&mut self) -> Result<(), StoreError> {
        self.execute("RELEASE SAVEPOINT semel_transactional").await.map(drop).map_err(store_error)
    }

    async fn undo(&mut self) -> Result<(), StoreError> {
        self.execute("ROLLBACK TO SAVEPOINT semel_transactional").await.map_err(store_error)?;
        self.keep().await
    }

    async fn record(&mut self, entry: &Entry<'_>) -> Result<Fenced, StoreError> {
        let held = self.held;
        match rows::record(self, entry, held).await {
            Ok(()) => Ok(Fenced::Applied),
            Err(error) => refused(&error).ok_or_else(|| store_error(error)),
        }
    }
}

impl fmt::Debug for PgUserTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgUserTransaction").field("own", &self.held.own).finish_non_exhaustive()
    }
}
