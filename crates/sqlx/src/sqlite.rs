//! Records in SQLite, through a [`sqlx::SqlitePool`].
//!
//! ```
//! use semel::{Outcome, Semel, core::{Caller, OnUnknown}, keys};
//! use semel_sqlx::sqlite::SqliteDatabase;
//! use sqlx::{SqlitePool, sqlite::{SqliteConnectOptions, SqliteJournalMode}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! let options = SqliteConnectOptions::new()
//!     .filename(&path)
//!     .create_if_missing(true)
//!     .journal_mode(SqliteJournalMode::Wal);
//! let pool = SqlitePool::connect_with(options).await?;
//! # sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await?;
//! let store = SqliteDatabase::open(pool).await?.store();
//! let semel = Semel::new(store.clone());
//!
//! for _ in 0..3 {
//!     let store = store.clone();
//!     let outcome = semel
//!         .once("orders", Caller::new("shop-3")?, keys::from_parts("orders", ["cart-17"]))
//!         .on_unknown(OnUnknown::Rerun) // a failure was rolled back, so it may run again
//!         .run(move |lease| async move {
//!             let mut tx = store.transaction(&lease).await?;
//!             let sql = "INSERT INTO orders DEFAULT VALUES RETURNING id";
//!             Ok(sqlx::query_scalar::<_, i64>(sql).fetch_one(&mut **tx).await?)
//!         })
//!         .await?;
//!     assert!(matches!(outcome, Outcome::Ran(1) | Outcome::Replayed(1)));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Inside a transaction of your own, see [`SqliteUserTransaction`].
//!
//! # Cost
//!
//! SQLite allows one write transaction at a time. Here the transaction begins with the operation
//! and blocks every other write to the file until its end, in this process and in others. So keep
//! operations short; after five seconds a waiting operation fails with a busy store. (With
//! rusqlite,
//! `semel-sqlite` begins the transaction with the first write.) Operations that wait in this
//! process hold no connection; reads continue if the file has a write-ahead log.
//!
//! # Beside `semel-sqlite`
//!
//! An operation is claimed by a locked file in a folder beside the database, as in `semel-sqlite`.
//! So programs with either crate see each other's operations, and each operation runs once. (An
//! [`SqliteUserTransaction`] takes SQLite's lock instead, and may begin an operation that another
//! process runs and has not written yet: one of them commits, and the other is rolled back.)

mod claims;
mod database;
mod operations;
mod rows;
mod user_transaction;

pub use database::{SqliteDatabase, SqliteTransaction, SqliteTransactionalStore, create_table};
pub use operations::SqliteOperations;
pub use user_transaction::SqliteUserTransaction;

/// The SQL that creates the table, for a migration of your own. It can be run repeatedly.
pub const TABLE: &str = semel::transactional::sql::sqlite::TABLE;
