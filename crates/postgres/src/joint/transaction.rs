//! An open transaction on a connection of the user's pool.

use std::{fmt, ops::Deref};

use deadpool_postgres::{ClientWrapper, Object};

use super::row::Held;

/// How often a connection is handed on before it goes back to its pool, where others wait too.
const HANDED_MAX: u8 = 16;

/// An open transaction, through which an operation writes. It stands for its connection: `query`,
/// `execute`, `prepare_cached` and the rest work as on any other.
///
/// Whoever drops it undoes everything.
pub struct PgTransaction {
    /// Taken only when it ends.
    object: Option<Object>,
    held: Held,
    /// How often its connection was handed on since it left the pool.
    handed: u8,
}

impl PgTransaction {
    pub(super) const fn new(object: Object) -> Self {
        Self { object: Some(object), held: Held::NONE, handed: 0 }
    }

    pub(super) const fn holding(mut self, held: Held) -> Self {
        self.held = held;
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

    /// The lock that was taken by it.
    pub(super) const fn held(&self) -> Held {
        self.held
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
        f.debug_struct("PgTransaction").field("own", &self.held.own).finish_non_exhaustive()
    }
}
