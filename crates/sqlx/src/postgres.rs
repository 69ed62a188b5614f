//! Records in PostgreSQL, through a [`sqlx::PgPool`].
//!
//! ```no_run
//! use semel::{Outcome, Semel, core::{Caller, OnUnknown}, keys};
//! use semel_sqlx::postgres::{self, PgDatabase};
//! use sqlx::PgPool;
//!
//! # async fn order(pool: PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! postgres::create_table(&pool).await?; // or put `postgres::TABLE` into a migration of yours
//! let store = PgDatabase::new(pool).store();
//! let semel = Semel::new(store.clone());
//!
//! let outcome = semel
//!     .once("orders", Caller::new("shop-3")?, keys::from_parts("orders", ["cart-17"]))
//!     .on_unknown(OnUnknown::Rerun) // what failed was rolled back, so it may run again
//!     .run(move |lease| async move {
//!         let mut tx = store.transaction(&lease).await?;
//!         let sql = "INSERT INTO orders DEFAULT VALUES RETURNING id";
//!         Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await?)
//!     })
//!     .await?;
//! if let Outcome::Ran(order) | Outcome::Replayed(order) = outcome {
//!     println!("order {order}, however often this is called");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Inside a transaction of your own, see [`PgUserTransaction`].
//!
//! A transaction that runs an operation takes an advisory lock for its scope, caller and key. A
//! caller that does not get the lock learns so at once and waits without a connection. The lock
//! ends with the transaction. The primary key of the row prevents a second record, even from a
//! program that does not use the lock.
//!
//! The isolation level is the default of your database. Above `read committed` an operation takes
//! two more round trips to begin, because its snapshot must be younger than its lock; inside a
//! transaction of your own it cannot be, see [`PgUserTransaction`].
//!
//! The table is found by its name alone. If an operation changes its `search_path` so that the name
//! leads to another table, its record is refused and everything is rolled back: no repeat would
//! look for it there.

mod database;
mod operations;
mod rows;
mod user_transaction;

pub use database::{PgDatabase, PgTransaction, PgTransactionalStore, create_table};
pub use operations::PgOperations;
pub use user_transaction::PgUserTransaction;

/// The table, for a migration of your own. It may be run again.
pub const TABLE: &str = semel::transactional::sql::postgres::TABLE;
