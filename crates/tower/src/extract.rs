//! What a handler can extract about its operation.

use std::{
    error, fmt,
    ops::{Deref, DerefMut},
};

use axum::{
    extract::{FromRef, FromRequestParts, OptionalFromRequestParts},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use semel::{
    Lease,
    core::{Fence, Key},
    transactional::{Database, TransactionGuard, TransactionalStore},
};

/// The key of the request, chosen by its client.
///
/// For calls that the handler makes in turn, use [`Lease::key_for`]: another client may send the
/// same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub Key);

/// The fence of this run, higher than that of every earlier run under the same key.
///
/// A handler that stores it with its own data, and refuses to overwrite a higher one, is safe from
/// zombies: runs that lost their lease and continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyFence(pub Fence);

/// The number of this run, from 1. From 2 on, check what the earlier run may have done before you
/// repeat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencyAttempt(pub u32);

/// The handler extracts what only a guarded request has. Answers 500: such a route must be guarded
/// and must require a key; other routes use an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotGuarded {
    /// There is no lease.
    NoLease,
    /// The store was unavailable, and the route ran the operation unguarded.
    NoFence,
    /// The layer's store is not the one in the router's state, or another part of the handler uses
    /// the transaction.
    NoTransaction,
}

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLease => {
                "no idempotency layer guards this route, or the request had no key: require one, \
                 or extract an Option"
            }
            Self::NoFence => {
                "the store is away and this route runs unguarded then, without a fence: extract an \
                 Option"
            }
            Self::NoTransaction => {
                "no transaction of the store in the router's state is open for this request: give \
                 the layer an engine on that store, and extract one transaction"
            }
        })
    }
}

impl error::Error for NotGuarded {}

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

fn lease(parts: &Parts) -> Result<&Lease, NotGuarded> {
    parts.extensions.get().ok_or(NotGuarded::NoLease)
}

/// Implements both extractor traits for a type that is read from a lease.
macro_rules! from_lease {
    ($name:ident, $read:expr) => {
        impl<S: Sync> FromRequestParts<S> for $name {
            type Rejection = NotGuarded;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
                lease(parts).and_then($read).map(Self)
            }
        }

        impl<S: Sync> OptionalFromRequestParts<S> for $name {
            type Rejection = std::convert::Infallible;

            async fn from_request_parts(
                parts: &mut Parts,
                _: &S,
            ) -> Result<Option<Self>, Self::Rejection> {
                Ok(lease(parts).and_then($read).ok().map(Self))
            }
        }
    };
}

from_lease!(IdempotencyKey, |lease| Ok(lease.key().clone()));
from_lease!(IdempotencyFence, |lease| lease.fence().ok_or(NotGuarded::NoFence));
from_lease!(IdempotencyAttempt, |lease| Ok(lease.attempt()));

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
