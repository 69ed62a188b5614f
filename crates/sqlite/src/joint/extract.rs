//! The transaction of a handler as an argument of it.

use std::ops::{Deref, DerefMut};

use axum_core::{
    extract::{FromRef, FromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};
use semel::{Lease, joint::JointTransaction};

use super::{SqliteJoint, SqliteTransaction};

/// The transaction in which a handler writes, and in which its answer is recorded.
///
/// The route is guarded by the layer of `semel-tower` with an engine on a [`SqliteJoint`], and the
/// router's state is or holds that store:
///
/// ```
/// use axum::{Router, http::{HeaderName, StatusCode}, routing::post};
/// use semel::{Semel, core::Scope};
/// use semel_sqlite::joint::{SqliteDatabase, Tx};
/// use semel_tower::{Callers, IdempotencyLayer, KeyRule};
///
/// async fn order(mut tx: Tx) -> Result<StatusCode, StatusCode> {
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
pub struct Tx(JointTransaction<SqliteTransaction>);

impl Deref for Tx {
    type Target = JointTransaction<SqliteTransaction>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<S> FromRequestParts<S> for Tx
where
    S: Send + Sync,
    SqliteJoint: FromRef<S>,
{
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, NotGuarded> {
        let lease = parts.extensions.get::<Lease>().cloned().ok_or(NotGuarded)?;
        let store = SqliteJoint::from_ref(state);
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
