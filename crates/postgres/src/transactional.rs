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
//! The message that begins an operation takes an advisory lock, which stands for scope, caller and
//! key, and then looks up the record, by separate statements. An operation that does not get the
//! lock waits without a connection. The lock ends with the transaction. The message that commits
//! inserts the row. Its primary key makes a second one impossible, even for a program that ignores
//! the lock.
//!
//! So an operation takes no more round trips than the same transaction without a record. Both
//! messages execute statements that are prepared once on each connection, under names that begin
//! with `semel_transactional_`. If these were deallocated, by `DISCARD ALL` or behind a pooler, the
//! next operation prepares them again when it begins; an operation must not deallocate them itself.
//! All other statements, for example of a replay, are unnamed.
//!
//! While more operations wait than the pool has connections,
//! [`PgDatabase::with_connection_handoff`] saves each of them one of these round trips.
//!
//! # Limits
//!
//! - A commit whose wait for a synchronous standby was cancelled counts as done, as it does for
//!   every other user of the connection pool.
//! - A transaction that fails at its commit, by a deferred constraint or a serialization failure,
//!   is rolled back. Its client is informed that the outcome was not recorded; a retry runs again.
//! - The text of the message that commits contains the key and an answer of up to 4 KiB. Everyone
//!   who may see this role's queries sees them (`pg_stat_activity`), and the server logs them if
//!   the insert fails, unless `log_min_error_statement` is higher.
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
mod handoff_queue;
mod row;
mod simple_query;
mod statements;
mod transaction;
mod user_transaction;

pub use database::{PgDatabase, PgTransactionalStore, create_table};
pub use transaction::PgTransaction;
pub use user_transaction::PgUserTransaction;

/// The script that creates the table, for a migration of your own. It may be run again.
pub const TABLE: &str = semel::transactional::sql::postgres::TABLE;
