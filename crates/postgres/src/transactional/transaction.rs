//! An open transaction on a connection of the user's pool.

use std::{fmt, ops::Deref, sync::Arc};

use deadpool_postgres::{ClientWrapper, Object};

use super::statements::TableStatements;

/// How often a connection is handed off before it goes back to its pool, for its other users.
const HANDOFFS_MAX: u8 = 16;

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
    /// How often its connection was handed off since it left the pool.
    handoffs: u8,
}

impl PgTransaction {
    pub(super) const fn new(object: Object, statements: Arc<TableStatements>) -> Self {
        Self { object: Some(object), transaction_id: 0, statements, handoffs: 0 }
    }

    pub(super) const fn numbered(mut self, transaction_id: i64) -> Self {
        self.transaction_id = transaction_id;
        self
    }

    /// Whether its connection may be handed off once more.
    pub(super) const fn may_hand_off(&self) -> bool {
        self.handoffs < HANDOFFS_MAX
    }

    pub(super) const fn count_handoff(mut self) -> Self {
        self.handoffs = self.handoffs.saturating_add(1);
        self
    }

    /// Whether its connection is used for the first time.
    pub(super) fn is_new(&self) -> bool {
        self.object.as_ref().is_some_and(|object| Object::metrics(object).recycle_count == 0)
    }

    pub(super) const fn transaction_id(&self) -> i64 {
        self.transaction_id
    }

    pub(super) fn statements(&self) -> &TableStatements {
        &self.statements
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
