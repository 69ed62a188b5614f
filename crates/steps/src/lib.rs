//! Operations of several steps, in your own database: they resume after a crash, and are undone
//! after a refusal.
//!
//! An operation that calls several services cannot be one transaction. Here it is a function that
//! is run once per key, and whose steps are recorded. If its process ends, another one runs the
//! function again from its beginning; every recorded step returns what is recorded. If it returns a
//! refusal, its steps are undone in reverse order. Every step and every undo has an idempotency key
//! of its own, so that a repeated refund refunds once.
//!
//! ```
//! use semel_steps::{Operation, OperationOutcome, Operations, SqliteOperations, StepError};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     cents: u64,
//!     to: String,
//! }
//! # async fn charge(key: &str, cents: u64) -> Result<u64, std::io::Error> { Ok(cents) }
//! # async fn refund(key: &str, charge: u64) -> Result<(), std::io::Error> { Ok(()) }
//! # async fn ship(key: &str, to: &str) -> Result<bool, std::io::Error> { Ok(to != "the moon") }
//!
//! async fn checkout(
//!     op: Operation<SqliteOperations>,
//!     order: Order,
//! ) -> Result<String, StepError> {
//!     let cents = order.cents;
//!     op.step("charge", |step| async move { Ok(charge(step.key(), cents).await?) })
//!         .undo(|undo, charged| async move { Ok(refund(undo.key(), charged).await?) })
//!         .await?;
//!     op.step_tx("reserve", |mut tx| async move {
//!         tx.run(|db| db.execute("UPDATE stock SET pieces = pieces - 1", [])).await?;
//!         Ok(())
//!     })
//!     .undo_tx(|mut tx, ()| async move {
//!         tx.run(|db| db.execute("UPDATE stock SET pieces = pieces + 1", [])).await?;
//!         Ok(())
//!     })
//!     .await?;
//!     op.step("ship", |step| async move {
//!         if ship(step.key(), &order.to).await? {
//!             Ok("on its way".to_owned())
//!         } else {
//!             Err(StepError::refused("no courier goes there"))
//!         }
//!     })
//!     .await
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! let operations = Operations::new(SqliteOperations::open(&path)?);
//! # let shop = rusqlite::Connection::open(&path)?;
//! # shop.execute_batch("CREATE TABLE stock (pieces INTEGER); INSERT INTO stock VALUES (5)")?;
//! let checkout = operations.operation("checkout", 1, checkout);
//! operations.recover(); // what a former process left
//!
//! let order = |to: &str| Order { cents: 1200, to: to.to_owned() };
//! for _ in 0..2 {
//!     let outcome = checkout.run("order-17", &order("Rome")).await?;
//!     assert_eq!(outcome, OperationOutcome::Done("on its way".to_owned()));
//! }
//! let outcome = checkout.run("order-18", &order("the moon")).await?;
//! assert!(matches!(outcome, OperationOutcome::Undone(_)));
//! # let pieces: i64 = shop.query_row("SELECT pieces FROM stock", [], |row| row.get(0))?;
//! # assert_eq!(pieces, 4);
//! # Ok(())
//! # }
//! ```
//!
//! # Three kinds of steps
//!
//! | | its callee | after a crash inside | commits |
//! |---|---|---|---|
//! | [`step`](Operation::step) | takes an idempotency key | runs again with the same key | 1 |
//! | [`step_once`](Operation::step_once) | takes none | parks the operation | 2 |
//! | [`step_tx`](Operation::step_tx) | is this database | was rolled back, runs again | its own |
//!
//! Beyond its steps an operation costs one commit when it starts and one when it ends.
//!
//! # Ownership
//!
//! A process owns an operation by a lease and a fence. Every write of an owner names the fence in
//! the statement itself. A process whose lease has ended is overtaken: the new owner raises the
//! fence, and whatever the former owner still writes changes nothing. Calls that it still makes
//! carry the same keys.
//!
//! A process takes over only operations whose name and version it has a function for.
//!
//! # Limits
//!
//! - A function may do nothing but call steps and compute with their results. It runs again.
//! - Names of steps are unique within an operation; at most 1,000 steps; inputs and results of at
//!   most 1 MiB of JSON.
//! - After its [retention](Operations::retention) a key starts a new operation, whose steps have
//!   the same keys as before.
//! - There are no timers, signals and queues.

#[doc(hidden)]
pub mod clock;
mod context;
mod driver;
mod error;
mod journal;
mod operation;
mod operations;
mod owned_run;
#[cfg(feature = "postgres")]
pub mod postgres;
#[doc(hidden)]
pub mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod step;
pub mod store;

pub use context::{StepContext, StepTransaction};
pub use error::StepError;
pub use operation::Operation;
pub use operations::{OperationCounts, OperationHandle, OperationOutcome, Operations};
#[cfg(feature = "postgres")]
pub use postgres::PgOperations;
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteOperations;
pub use step::Step;
pub use store::OperationStore;
