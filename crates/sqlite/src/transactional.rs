//! Exactly-once operations together with your own data, on SQLite: the record of an operation is a
//! row in your own file, added by the commit that holds the operation's writes. See
//! [`semel::transactional`] for what that means.
//!
//! ```
//! use semel::{Outcome, Semel, core::{Caller, OnUnknown}, keys};
//! use semel_sqlite::transactional::SqliteDatabase;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! # let shop = rusqlite::Connection::open(&path)?;
//! # shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, cart TEXT)")?;
//! let store = SqliteDatabase::open(&path)?.store();
//! let semel = Semel::new(store.clone());
//!
//! for _ in 0..3 {
//!     let store = store.clone();
//!     let outcome = semel
//!         .once("orders", Caller::new("shop-3")?, keys::from_parts("orders", ["cart-17"]))
//!         .on_unknown(OnUnknown::Rerun) // what failed was rolled back, so it may run again
//!         .run(move |lease| async move {
//!             let mut tx = store.transaction(&lease).await?;
//!             let sql = "INSERT INTO orders (cart) VALUES ('cart-17') RETURNING id";
//!             Ok(tx.run(|db| db.query_row(sql, [], |row| row.get::<_, i64>(0))).await?)
//!         })
//!         .await?;
//!     assert!(matches!(outcome, Outcome::Ran(1) | Outcome::Replayed(1)));
//! }
//! # let orders: i64 = shop.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?;
//! # assert_eq!(orders, 1);
//! # Ok(())
//! # }
//! ```
//!
//! Inside a transaction of your own, see [`SqliteUserTransaction`]. With axum, see `Tx` of
//! `semel-tower`.
//!
//! # How it works
//!
//! An operation is claimed by a locked file in a folder beside the database: a lock that ends with
//! its process, and that does not block other writes. SQLite's own lock, one for the whole file, is
//! taken when the operation first [writes](SqliteTransaction::run), and held until its record is
//! committed. A caller that does not get the claim learns so at once, and waits without either
//! lock. The primary key of the row prevents a second record, even from a program that does not use
//! these claims.
//!
//! # What it costs
//!
//! - From its first write to its end, an operation blocks every other write to the file, in this
//!   process and in others. So let it do slow work first, such as calling a bank. A write that has
//!   waited for five seconds fails with `SQLITE_BUSY`.
//! - Every operation is a separate commit with a sync, one after the other. (A
//!   [`SqliteStore`](crate::SqliteStore) commits many operations at once.)
//!
//! # Limits
//!
//! - Retention is counted by the wall clock.
//! - All processes that use the file run on one machine, as the same user.

mod connection_thread;
mod database;
mod rows;
mod transaction;
mod user_transaction;

pub use database::{SqliteDatabase, SqliteTransactionalStore, create_table};
pub use transaction::SqliteTransaction;
pub use user_transaction::SqliteUserTransaction;

/// The table, for a migration of your own. It may be run again.
pub const TABLE: &str = semel::transactional::sql::sqlite::TABLE;
