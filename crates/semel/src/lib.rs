//! Makes every retry harmless: for each key an operation runs once, and every repeat gets the first
//! answer back.
//!
//! A network cannot distinguish "it failed" from "it succeeded and the answer was lost". So clients
//! retry, and an operation that was to run once runs twice. This crate is the engine that prevents
//! it, on any store; it has two fronts for Rust programs:
//!
//! - [`once`] for any async operation: a job, a worker, a webhook handler. It is in this crate.
//! - the layer of `semel-tower` for HTTP services on axum, hyper or tonic.
//!
//! # An operation, once
//!
//! ```text
//! cargo add semel semel-sqlite tokio --features tokio/full
//! ```
//!
//! ```
//! use semel::{MemoryStore, Outcome, Semel, core::Caller, keys};
//!
//! # async fn charge(_card: &str, cents: u64) -> std::io::Result<String> {
//! #     Ok(format!("receipt for {cents}"))
//! # }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In production: `semel_sqlite::SqliteStore::open("semel.db")?`, which survives a crash.
//! let semel = Semel::new(MemoryStore::new());
//! let caller = Caller::new("billing")?;
//!
//! for expected in ["ran", "replayed"] {
//!     // The same customer and month make the same key, whenever and wherever this runs.
//!     let key = keys::from_parts("invoice", &["customer-7", "2026-10"]);
//!     let outcome = semel
//!         .once("invoices", caller.clone(), key)
//!         .fingerprint(&("customer-7", 1999))
//!         .run(|_lease| async {
//!             let receipt = charge("tok_visa", 1999).await?; // an error here: outcome unknown
//!             Ok(receipt)
//!         })
//!         .await?;
//!     match outcome {
//!         Outcome::Ran(receipt) => assert_eq!((expected, &*receipt), ("ran", "receipt for 1999")),
//!         Outcome::Replayed(receipt) => assert_eq!(receipt, "receipt for 1999"),
//!         Outcome::Unknown(_) | Outcome::Overtaken(_) => println!("check before doing anything
//! else"),
//!         other => println!("nothing was charged by this call: {other:?}"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What the engine does
//!
//! - **It owns the execution.** An operation runs in a task of its own, detached before its claim
//!   is sent. A client may disconnect at any time; the operation runs to its end and is recorded.
//! - **It renews leases.** A lease is renewed at a third of its length while the operation runs. A
//!   run whose lease expired has a lower [fence](Lease::fence) than its successor: its writes are
//!   refused.
//! - **It joins.** Repeats in the same process wait for the running one without a store call;
//!   repeats in another process share one poll of the store.
//! - **It answers only what is durable**, and reports an unknown outcome as unknown.
//! - **It caches.** Completed records are cached, up to a number of bytes, and an operator's action
//!   takes effect within a second. While the store is unavailable they are replayed for five
//!   minutes.
//! - **It is bounded**: running and waiting requests, in total and per caller. See [`Builder`]. So
//!   is the store, where [`Quotas`] are set.
//! - **It fails closed**: without its store it runs nothing, unless the policy says otherwise. The
//!   first requests fail after their `store_timeout`, and the next ones at once. A claim that the
//!   store may have granted meanwhile is given back when it replies again.
//! - **It is observable**: an [`Observer`] receives every event. Without one no event is built.
//! - **It maintains the store**: it settles records whose lease has expired and sweeps old ones, in
//!   small batches.
//!
//! On shutdown, call [`Semel::drain`] before the runtime ends.
//!
//! # Stores
//!
//! [`MemoryStore`] is for tests. `semel-sqlite` keeps its promises through `kill -9` and power
//! cuts, in one file that several processes may share. [`semel_core::store`] states the
//! laws that every store keeps.

mod arrivals;
mod breaker;
mod cache;
mod caller_changes;
mod clock;
mod deadline;
mod engine;
mod flights;
pub mod keys;
mod lease;
mod limiter;
pub mod memory;
mod observer;
pub mod once;
mod owners;
mod per_caller;
mod quota;
mod retained_reply;
mod span;
#[cfg(feature = "transactional")]
pub mod transactional;

use std::time::Duration;

pub use arrivals::{Arrival, Sender};
pub use deadline::Deadline;
pub use engine::{
    Admission, BeginRequest, Builder, ExecutionOutput, OperationReply, OwnExecution, Pending,
    RecordedReply, RemoteClaim, RemoteFinish, RestOfExecution, Semel,
};
pub use lease::Lease;
pub use memory::MemoryStore;
pub use observer::{
    Event, EventKind, ObservedOutcome, Observer, ReplaySource, Run, StoreOperation,
};
pub use once::{Once, OnceError, OnceErrorKind, OperationError, Outcome};
pub use quota::{QuotaUsage, Quotas};
pub use semel_core as core;
pub use semel_core::{Caller, Fence, Key, OnUnknown, Policy, Scope};

/// The default retention of a message or an event: longer than senders retry. Standard Webhooks and
/// Stripe retry for three days.
pub const INBOX_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
