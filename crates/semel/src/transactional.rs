//! Transactional records: the record of an operation is a row in your own database, written by the
//! same commit as the operation's own writes.
//!
//! A process can crash between a side effect and its record, and then the outcome is unknown. Where
//! the side effect *is* a write to a database, this can be avoided: claim, business writes and
//! recorded answer become one transaction, which commits as a whole or not at all.
//!
//! - A [`TransactionalStore`] is a [`Store`](semel_core::Store) for the engine. The layer of
//!   `semel-tower` and [`once`](crate::once) work on it as on any other store: they join, wait,
//!   replay and limit. A running operation gets
//!   [its transaction](TransactionalStore::transaction) and writes through it; recording its answer
//!   commits it.
//! - [`InTransaction`] runs a closure under a key inside a transaction that the caller has opened.
//!
//! Both work on any [`Database`] or [`UserTransaction`]: `semel-postgres`, `semel-sqlite` and
//! `semel-sqlx` implement them.
//!
//! # How an execution ends
//!
//! | it ends with | its writes | the record |
//! |---|---|---|
//! | an answer that is kept, below 400; a value | committed | committed with them |
//! | an answer that is kept, from 400 on; a refusal | rolled back, or [kept] | committed |
//! | an answer that is not kept, an error, a crash | rolled back | none: the key is free |
//!
//! [kept]: TransactionGuard::keep_writes
//!
//! So no record is ever held: what is not recorded did not happen. A rollback does not undo what an
//! operation did elsewhere, such as a call to a bank. Such calls need an idempotency key of their
//! own: [`Lease::key_for`](crate::Lease::key_for). A connection that is lost while its operation
//! runs frees the key, and another process may start the operation again: one of them commits, and
//! both may have called the bank.
//!
//! # Waiting
//!
//! Repeats in the same process wait in memory, without a connection. Repeats in another process
//! find the operation running, return their connection to the pool, and poll.

mod awaited;
mod claim_files;
mod database;
mod in_transaction;
mod open;
#[doc(hidden)]
pub mod sql;
mod store;

pub use claim_files::{ClaimFile, ClaimFiles};
pub use database::{BeginResult, Database, Entry, RecordLookup, Recorded, UserTransaction};
pub use in_transaction::InTransaction;
pub use open::{NoTransaction, TransactionGuard};
pub use store::TransactionalStore;

pub use crate::INBOX_RETENTION;
