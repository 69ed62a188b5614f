//! The transaction of a handler as an argument of it.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use axum_core::{
    extract::{FromRef, FromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use semel::{
    Lease,
    joint::{Database, JointStore, JointTransaction},
};

/// The transaction in which a handler writes, and in which its answer is recorded.
///
/// The route is guarded by the layer of `semel-tower` with an engine on a [`JointStore`], and the
/// router's state is or holds that store:
///
/// ```no_run
/// use axum::{Router, http::{HeaderName, StatusCode}, routing::post};
/// use semel::{Semel, core::Scope};
/// use semel_sqlx::{Tx, postgres::PgDatabase};
/// use semel_tower::{Callers, IdempotencyLayer, KeyRule};
///
/// async fn order(mut tx: Tx<PgDatabase>) -> Result<StatusCode, StatusCode> {
///     let insert = sqlx::query("INSERT INTO orders DEFAULT VALUES");
///     let done = insert.execute(&mut ***tx).await;
///     // An error rolls everything back, and a retry runs again.
///     done.map(|_| StatusCode::CREATED).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
/// }
///
/// # fn app(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let store = PgDatabase::new(pool).store();
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
pub struct Tx<D: Database>(JointTransaction<D::Transaction>);

impl<D: Database> Deref for Tx<D> {
    type Target = JointTransaction<D::Transaction>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<D: Database> DerefMut for Tx<D> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<D: Database> fmt::Debug for Tx<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tx").field(&self.0).finish()
    }
}

impl<S, D> FromRequestParts<S> for Tx<D>
where
    S: Send + Sync,
    D: Database,
    JointStore<D>: FromRef<S>,
{
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotGuarded> {
        let lease = parts.extensions.get::<Lease>().cloned().ok_or(NotGuarded)?;
        let store = JointStore::<D>::from_ref(state);
        store.transaction(&lease).await.map(Self).map_err(|_| NotGuarded)
    }
}

/// The request has no transaction: its route has no layer on this store, or it came without a key
/// to a route that does not require one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotGuarded;

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        let text = "this request is not guarded by an idempotency layer on the handler's store: \
                    nothing was done\n";
        (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    }
}
