//! Once, together with your own data: the record of an operation is a row in your own database,
//! written by the same commit as what the operation wrote.
//!
//! Between a side effect and its record a process can die, and then nobody knows what happened.
//! Where the side effect *is* a write to a database, it need not be so: claim, business writes and
//! recorded answer become one transaction, and either all of it happened or none.
//!
//! - A [`JointStore`] is a [`Store`](semel_core::Store) for the engine. So the layer of
//!   `semel-tower` and [`once`](crate::once) work on it as on any other: they join, wait, replay
//!   and bound. What runs asks for [its transaction](JointStore::transaction) and writes through
//!   it; when its answer is recorded, that commits.
//! - [`Within`] runs a closure under a key inside a transaction that the caller has opened.
//!
//! Both work on anything that is a [`Database`] or a [`Carrier`]: `semel-postgres`, `semel-sqlite`
//! and `semel-sqlx` have them.
//!
//! # What becomes of an execution
//!
//! | it ends with | its writes | the record |
//! |---|---|---|
//! | an answer that is kept, below 400; a value | committed | committed with them |
//! | an answer that is kept, from 400 on; a refusal | rolled back, or [kept] | committed |
//! | an answer that is not kept, an error, a crash | rolled back | none: the key is free |
//!
//! [kept]: JointTransaction::keep_writes
//!
//! So nothing is ever held: what is not recorded did not happen. (What an operation did elsewhere,
//! by calling a bank, is not undone by a rollback. Such calls belong behind an idempotency key of
//! their own: [`Lease::key_for`](crate::Lease::key_for). A connection that is lost while its
//! operation runs frees the key, and another process may begin beside the first: one of them
//! commits, and both may have called the bank.)
//!
//! # Who waits for whom
//!
//! Repeats in the same process wait in memory, without a connection. Repeats elsewhere find that
//! somebody runs it, give their connection back, and look again from time to time.

mod awaited;
mod claim_files;
mod database;
mod open;
mod store;
mod within;

use std::time::Duration;

pub use claim_files::{ClaimFile, ClaimFiles};
pub use database::{Begun, Carrier, Database, Entry, Recorded, Seen};
pub use open::{JointTransaction, NoTransaction};
pub use store::JointStore;
pub use within::Within;

/// How long a message or an event is remembered, unless its receiver says otherwise: longer than
/// senders retry, which Standard Webhooks do for three days and Stripe does too.
pub const INBOX_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
