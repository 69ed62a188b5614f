//! The transaction of a handler as an extractor.

use std::ops::{Deref, DerefMut};

use axum::{
    extract::{FromRef, FromRequestParts, OptionalFromRequestParts},
    http::request::Parts,
};
use semel::transactional::{Database, TransactionGuard, TransactionalStore};

use crate::extract::{NotGuarded, lease};

/// The transaction of a handler, in which its answer is recorded.
///
/// The route is guarded by a layer with an engine on a [`TransactionalStore`], and the router's
/// state is or contains that store. `semel-postgres`, `semel-sqlite` and `semel-sqlx` have
/// databases for it:
///
/// ```
/// use axum::{Router, http::{HeaderName, StatusCode}, routing::post};
/// use semel::{Semel, core::Scope};
/// use semel_sqlite::transactional::SqliteDatabase;
/// use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
///
/// async fn order(mut tx: Tx<SqliteDatabase>) -> Result<StatusCode, StatusCode> {
///     let done = tx.run(|db| db.execute("INSERT INTO orders DEFAULT VALUES", [])).await;
///     // An error rolls everything back, and a retry runs again.
///     done.map(|_| StatusCode::CREATED).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("shop.db");
/// let store = SqliteDatabase::open(&path)?.store();
/// let semel = Semel::new(store.clone());
/// let callers = Callers::header(HeaderName::from_static("x-merchant-id"))?;
/// let layer = IdempotencyLayer::new(&semel, Scope::new("orders")?, callers)
///     .key(KeyRule::default().required());
/// let app: Router =
///     Router::new().route("/orders", post(order)).route_layer(layer).with_state(store);
/// # let _ = app;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Tx<D: Database>(TransactionGuard<D::Transaction>);

impl<D: Database> Tx<D> {
    /// Commits the writes even if the answer is a refusal, to keep a declined attempt for example.
    /// See [`TransactionGuard::keep_writes`].
    pub fn keep_writes(&self) {
        self.0.keep_writes();
    }

    /// Rolls the writes back even if the answer is a success, which is recorded. See
    /// [`TransactionGuard::drop_writes`].
    pub fn drop_writes(&self) {
        self.0.drop_writes();
    }
}

impl<D: Database> Deref for Tx<D> {
    type Target = D::Transaction;

    fn deref(&self) -> &D::Transaction {
        &self.0
    }
}

impl<D: Database> DerefMut for Tx<D> {
    fn deref_mut(&mut self) -> &mut D::Transaction {
        &mut self.0
    }
}

impl<S, D> FromRequestParts<S> for Tx<D>
where
    S: Sync,
    D: Database,
    TransactionalStore<D>: FromRef<S>,
{
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotGuarded> {
        let (lease, store) = (lease(parts)?, TransactionalStore::<D>::from_ref(state));
        lease.fence().ok_or(NotGuarded::NoFence)?;
        store.transaction(lease).await.map(Self).map_err(|_| NotGuarded::NoTransaction)
    }
}

impl<S, D> OptionalFromRequestParts<S> for Tx<D>
where
    S: Sync,
    D: Database,
    TransactionalStore<D>: FromRef<S>,
{
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Option<Self>, NotGuarded> {
        match <Self as FromRequestParts<S>>::from_request_parts(parts, state).await {
            Ok(tx) => Ok(Some(tx)),
            Err(NotGuarded::NoLease | NotGuarded::NoFence) => Ok(None),
            Err(NotGuarded::NoTransaction) => Err(NotGuarded::NoTransaction),
        }
    }
}
