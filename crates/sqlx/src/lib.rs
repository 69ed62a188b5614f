//! Exactly-once operations together with your own data: the record of an operation is a row in your
//! own database, added by the commit that holds the operation's writes, on transactions of
//! [`sqlx`]. See [`semel::transactional`] for what that means.
//!
//! - [`postgres`]: on a [`sqlx::PgPool`];
//! - [`sqlite`]: on a [`sqlx::SqlitePool`].
//!
//! Both modules also keep operations of several steps: see [`semel_steps`].
//!
//! Their tables are those of `semel-postgres` and `semel-sqlite`: programs with either crate may
//! share one database.
//!
//! # With axum
//!
//! A handler behind the layer of `semel-tower` takes its transaction as an argument. Its answer is
//! recorded by the same commit:
//!
//! ```
//! use axum::{Router, http::{HeaderName, StatusCode}, routing::post};
//! use semel::{Semel, core::Scope};
//! use semel_sqlx::postgres::PgDatabase;
//! use semel_tower::{Callers, IdempotencyLayer, KeyRule, Tx};
//! use sqlx::PgPool;
//!
//! async fn order(mut tx: Tx<PgDatabase>) -> Result<(StatusCode, String), StatusCode> {
//!     let sql = "INSERT INTO orders DEFAULT VALUES RETURNING id";
//!     let order = sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await;
//!     // An error rolls everything back, and a retry runs again.
//!     let order = order.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
//!     Ok((StatusCode::CREATED, format!("order {order}")))
//! }
//!
//! fn app(pool: PgPool) -> Result<Router, Box<dyn std::error::Error>> {
//!     let store = PgDatabase::new(pool).store();
//!     let semel = Semel::new(store.clone());
//!     let callers = Callers::header(HeaderName::from_static("x-merchant-id"))?;
//!     let layer = IdempotencyLayer::new(&semel, Scope::new("orders")?, callers)
//!         .key(KeyRule::default().required());
//!     Ok(Router::new().route("/orders", post(order)).route_layer(layer).with_state(store))
//! }
//! # let _ = app;
//! ```

mod detached;
mod error;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
