//! An open transaction on a connection of the user's pool.

use std::{fmt, ops::Deref};

use deadpool_postgres::{ClientWrapper, Object};

/// An open transaction, through which an operation writes. It stands for its connection: `query`,
/// `execute`, `prepare_cached` and the rest work as on any other.
///
/// Whoever drops it undoes everything.
pub struct PgTransaction {
    /// Taken only when it ends.
    object: Option<Object>,
    /// The number of the transaction.
    own: i64,
}

impl PgTransaction {
    pub(super) const fn new(object: Object) -> Self {
        Self { object: Some(object), own: 0 }
    }

    pub(super) const fn numbered(mut self, own: i64) -> Self {
        self.own = own;
        self
    }

    /// Whether nobody had its connection before.
    pub(super) fn is_new(&self) -> bool {
        self.object.as_ref().is_some_and(|object| Object::metrics(object).recycle_count == 0)
    }

    pub(super) const fn own(&self) -> i64 {
        self.own
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
