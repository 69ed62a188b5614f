//! An open transaction on a connection of the user's pool.

use std::{fmt, ops::Deref, sync::Arc};

use deadpool_postgres::{ClientWrapper, Object};
use tokio_postgres::{Error, Row};

use super::{
    row::{SqlParameter, TypedSql},
    statements::TableStatements,
};

/// When the statements that begin and commit an operation are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrepareMode {
    /// Once on each connection, under a name.
    Once,
    /// For each use, without a name: another client may use the session in between.
    Each,
}

/// An open transaction, through which an operation writes. It dereferences to its connection:
/// `query`, `execute`, `prepare_cached` and the others work as usual.
///
/// Dropping it rolls everything back.
pub struct PgTransaction {
    /// `None` only after the end.
    object: Option<Object>,
    /// The transaction id in PostgreSQL.
    transaction_id: i64,
    statements: Arc<TableStatements>,
    prepare: PrepareMode,
}

impl PgTransaction {
    pub(super) const fn new(
        object: Object,
        statements: Arc<TableStatements>,
        prepare: PrepareMode,
    ) -> Self {
        Self { object: Some(object), transaction_id: 0, statements, prepare }
    }

    pub(super) const fn numbered(mut self, transaction_id: i64) -> Self {
        self.transaction_id = transaction_id;
        self
    }

    pub(super) const fn transaction_id(&self) -> i64 {
        self.transaction_id
    }

    pub(super) fn statements(&self) -> &TableStatements {
        &self.statements
    }

    /// Prepares the statements that begin and commit an operation, if they are named.
    pub(super) async fn prepare_all(&self) -> Result<(), Error> {
        if self.prepare == PrepareMode::Once {
            for sql in [&self.statements.lock, &self.statements.read, &self.statements.record] {
                self.prepare_typed_cached(&sql.text, sql.types).await?;
            }
        }
        Ok(())
    }

    /// Sends a statement. If it was prepared before, or is unnamed, the first poll sends it.
    pub(super) async fn query_prepared(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        match self.prepare {
            PrepareMode::Once => {
                let statement = self.prepare_typed_cached(&sql.text, sql.types).await?;
                self.query(&statement, parameters).await
            }
            PrepareMode::Each => self.try_query_rows(sql, parameters).await,
        }
    }

    /// Sends an unnamed statement.
    pub(super) async fn try_query_rows(
        &self,
        sql: &TypedSql,
        parameters: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.query_typed(&sql.text, &sql.typed(parameters)).await
    }

    /// Returns the connection to its pool; no transaction may be open on it.
    pub(super) fn end(mut self) {
        self.object = None;
    }
}

impl Deref for PgTransaction {
    type Target = ClientWrapper;

    #[expect(clippy::expect_used, reason = "only `end` and `drop` take it, and both end the value")]
    fn deref(&self) -> &ClientWrapper {
        self.object.as_ref().expect("a transaction has its connection until it ends")
    }
}

impl Drop for PgTransaction {
    fn drop(&mut self) {
        // Taken out of the pool and closed, so that the server rolls back.
        drop(self.object.take().map(Object::take));
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").field("own", &self.transaction_id).finish_non_exhaustive()
    }
}
