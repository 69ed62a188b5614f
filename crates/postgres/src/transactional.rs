//! Once, together with your own data, on PostgreSQL: the record of an operation is a row in your
//! own database, added by the commit that holds what the operation wrote. See
//! [`semel::transactional`] for what that means.
//!
//! ```no_run
//! use deadpool_postgres::Pool;
//! use semel::{Outcome, Semel, core::{Caller, OnUnknown}, keys};
//! use semel_postgres::transactional::{self, PgDatabase};
//!
//! # async fn order(pool: Pool) -> Result<(), Box<dyn std::error::Error>> {
//! // Or put `transactional::TABLE` into a migration of yours.
//! transactional::create_table(&pool).await?;
//! let store = PgDatabase::new(pool).store();
//! let semel = Semel::new(store.clone());
//!
//! let outcome = semel
//!     .once("orders", Caller::new("shop-3")?, keys::from_parts("orders", ["cart-17"]))
//!     .on_unknown(OnUnknown::Rerun) // what failed was rolled back, so it may run again
//!     .run(move |lease| async move {
//!         let tx = store.transaction(&lease).await?;
//!         let row = tx.query_one("INSERT INTO orders DEFAULT VALUES RETURNING id", &[]).await?;
//!         Ok(row.get::<_, i64>(0))
//!     })
//!     .await?;
//! if let Outcome::Ran(order) | Outcome::Replayed(order) = outcome {
//!     println!("order {order}, however often this is called");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Inside a transaction of your own, see [`PgUserTransaction`]. With axum, see `Tx` of
//! `semel-tower`.
//!
//! # How it works
//!
//! An operation begins with three statements that are sent together: BEGIN, one that tries an
//! advisory lock, which stands for scope, caller and key, and one that reads the record. An
//! operation that does not get the lock waits without a connection. The lock ends with the
//! transaction. The record and COMMIT are sent together too. The primary key of the row makes a
//! second one impossible, even for a program that ignores the lock.
//!
//! So an operation takes no more round trips than the same transaction without a record. Its
//! statements are prepared once on each connection, in the cache that
//! [`prepare_cached`](deadpool_postgres::ClientWrapper::prepare_cached) uses. If they were
//! deallocated, by `DISCARD ALL` for example, the next operation prepares them again when it
//! begins; an operation must not deallocate them itself. Through a pooler in transaction mode, use
//! [`PgDatabase::with_unnamed_statements`].
//!
//! # Limits
//!
//! - A commit whose wait for a synchronous standby was cancelled counts as done, as it does for
//!   every other user of the connection pool.
//! - A transaction that fails at its commit, by a deferred constraint or a serialization failure,
//!   is rolled back. Its client is informed that the outcome was not recorded; a retry runs again.
//! - The table is looked up once, by its unqualified name in the `search_path` of a connection. If
//!   it is moved to another schema, restart the program. An operation may change its `search_path`.
//!   Inside a transaction of your own, a path that leads to another table makes the insert fail: no
//!   retry would find the record there. An operation that changes its role inserts the record with
//!   the rights of that role.
//! - The isolation level is the default of your database. Above `read committed` an operation takes
//!   one more round trip to begin, because its snapshot must be younger than its lock, and other
//!   writers may cause serialization failures. For a transaction of your own see
//!   [`PgUserTransaction`].
//! - The lock belongs to the connection. If that is lost while an operation runs, the server rolls
//!   back and releases the lock, and another process may begin the same operation before the first
//!   one notices, at its next statement. Only one of them commits. Effects outside of the database
//!   need a key of their own: [`Lease::key_for`](semel::Lease::key_for).

mod database;
mod pipeline;
mod row;
mod statements;
mod transaction;
mod user_transaction;

pub use database::{PgDatabase, PgTransactionalStore, create_table};
pub use transaction::PgTransaction;
pub use user_transaction::PgUserTransaction;

/// The script that creates the table, for a migration of your own. It may be run again.
pub const TABLE: &str = semel::transactional::sql::postgres::TABLE;

/// The script that creates the functions `semel_begin` and `semel_record`, with which programs in
/// other languages put records into the same table. It needs the [table](TABLE), and may be run
/// again. `semel migrate --transactional` runs both.
///
/// This crate does not call them. Its own statements are prepared once on a connection, sent
/// together with `BEGIN` and with `COMMIT`, and take two thirds of the server's time: 93 µs an
/// operation, and the functions 146 µs.
pub const FUNCTIONS: &str = semel::transactional::sql::postgres::FUNCTIONS;
