//! An open transaction on a connection of the user's pool.

use std::{fmt, ops::Deref, sync::Arc};

use deadpool_postgres::{ClientWrapper, Object};

use super::statements::Statements;

/// How often a connection is handed on before it goes back to its pool, where others wait too.
const HANDED_MAX: u8 = 16;

/// An open transaction, through which an operation writes. It stands for its connection: `query`,
/// `execute`, `prepare_cached` and the rest work as on any other.
///
/// Whoever drops it undoes everything.
pub struct PgTransaction {
    /// Taken only when it ends.
    object: Option<Object>,
    /// The number of the transaction.
    own: i64,
    statements: Arc<Statements>,
    /// How often its connection was handed on since it left the pool.
    handed: u8,
}

impl PgTransaction {
    pub(super) const fn new(object: Object, statements: Arc<Statements>) -> Self {
        Self { object: Some(object), own: 0, statements, handed: 0 }
    }

    pub(super) const fn numbered(mut self, own: i64) -> Self {
        self.own = own;
        self
    }

    /// Whether its connection may be handed on once more before others in the pool have a turn.
    pub(super) const fn may_be_handed_on(&self) -> bool {
        self.handed < HANDED_MAX
    }

    pub(super) const fn handed_on(mut self) -> Self {
        self.handed = self.handed.saturating_add(1);
        self
    }

    /// Whether nobody had its connection before.
    pub(super) fn is_new(&self) -> bool {
        self.object.as_ref().is_some_and(|object| Object::metrics(object).recycle_count == 0)
    }

    pub(super) const fn own(&self) -> i64 {
        self.own
    }

    pub(super) fn statements(&self) -> &Statements {
        &self.statements
    }

    /// Gives the connection back to its pool: nothing is open on it any more.
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
        // Out of the pool, so that it is closed: the server undoes what is open.
        drop(self.object.take().map(Object::take));
    }
}

impl fmt::Debug for PgTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgTransaction").field("own", &self.own).finish_non_exhaustive()
    }
}
