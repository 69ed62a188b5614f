//! Once, together with your own data, on PostgreSQL: the record of an operation is a row in your
//! own database, added by the commit that holds what the operation wrote. See [`semel::joint`] for
//! what that means.
//!
//! ```no_run
//! use deadpool_postgres::Pool;
//! use semel::{Outcome, Semel, core::{Caller, OnUnknown}, keys};
//! use semel_postgres::joint::{self, PgDatabase};
//!
//! # async fn order(pool: Pool) -> Result<(), Box<dyn std::error::Error>> {
//! joint::create_table(&pool).await?; // or put `joint::TABLE` into a migration of yours
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
//! Inside a transaction of your own, see [`InTransaction`]. With axum, see `Tx` of
//! `semel-tower`.
//!
//! # How it works
//!
//! A transaction that wants to run an operation takes an advisory lock that stands for its scope,
//! caller and key, and then looks for the record, by statements of their own in the message that
//! begins it. Whoever does not get the lock is told so at once and waits without a connection. The
//! lock ends with the transaction, however that ends. The row is added in the message that commits;
//! its primary key is what makes a second one impossible, even for a program that does not know of
//! the lock.
//!
//! So an operation takes no more round trips than the same transaction without a record. Both
//! messages use statements that are prepared once on each connection, under names that begin with
//! `semel_joint_`. Where they are gone, after `DISCARD ALL` or behind a pooler, they are made again
//! when the next operation begins; an operation must not make them go itself. Everything else that
//! is asked, for a replay say, has no name.
//!
//! Where more operations wait than the pool has connections, [`PgDatabase::handing_on`] saves one
//! of these round trips for each.
//!
//! # Limits
//!
//! - A commit whose wait for a synchronous standby was cancelled is taken for done, as it is by
//!   every other user of the connection pool.
//! - A transaction that fails at its very end, by a deferred constraint or because it cannot be
//!   serialised, is rolled back, and its client is told that the outcome was not recorded; a retry
//!   runs again.
//! - The message that commits has the key and an answer of up to 4 KiB as literals in its text. So
//!   the server shows them to those who may see this role's queries (`pg_stat_activity`), and a
//!   record that is refused puts them into its log, unless `log_min_error_statement` is higher.
//! - The table is found once, by its name alone, as the `search_path` of a connection has it then,
//!   and moved to another schema is missed until the program starts again. What an operation makes
//!   of that path changes nothing. Inside a transaction of your own, where it leads to another
//!   table, the record is refused: it would be looked for elsewhere. An operation that changes its
//!   role adds the record with the rights of that.
//! - Isolation is what your database has as its default. Above `read committed` an operation takes
//!   one more round trip to begin, because its snapshot must be younger than its lock, and may fail
//!   with a serialisation error where it meets other writers. Inside a transaction of your own see
//!   [`InTransaction`].
//! - The lock belongs to the connection. Where that is lost while an operation runs, the server
//!   rolls back and frees the lock, and another process may begin the same operation beside the
//!   first, which notices at its next statement. Only one of them commits. What both do elsewhere
//!   needs a key of its own: [`Lease::key_for`](semel::Lease::key_for).

mod carrier;
mod database;
mod line;
mod message;
mod row;
mod statements;
mod transaction;

pub use carrier::InTransaction;
pub use database::{PgDatabase, PgStore, create_table};
pub use transaction::PgTransaction;

/// The table, for a migration of your own. It may be run again.
pub const TABLE: &str = include_str!("joint/table.sql");
