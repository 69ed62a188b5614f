//! Once, together with your own data: the record of an operation is a row in your own database,
//! added by the commit that holds what the operation wrote, on transactions of [`sqlx`]. See
//! [`semel::joint`] for what that means.
//!
//! - [`postgres`]: on a [`sqlx::PgPool`];
//! - [`sqlite`]: on a [`sqlx::SqlitePool`].
//!
//! Their tables are those of `semel-postgres` and `semel-sqlite`: programs with either may use one
//! database together. With axum, see `Tx` of `semel-tower`.

mod apart;
mod error;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;
