//! Makes every retry harmless: for each key an operation runs once, and every repeat gets the first
//! answer back.
//!
//! A network cannot tell "it failed" from "it succeeded and the answer was lost". So whoever calls
//! retries, and what was to happen once happens twice. This crate is the engine that prevents it,
//! on any store; it has two fronts for Rust programs:
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
//!         Outcome::Unknown(_) | Outcome::Lost(_) => println!("look before anything else is done"),
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
//!   is asked for. Whoever waits for it may hang up at any time; it is carried to its end and
//!   recorded.
//! - **It keeps its right.** The lease is renewed at a third of its length for as long as the
//!   operation runs, and a run that was given up for dead has a lower [fence](Lease::fence) than
//!   its successor: what it writes is refused.
//! - **It joins.** Repeats in the same process wait for the running one without touching the store;
//!   repeats elsewhere wait too, one look at the store for all of them.
//! - **It answers only what is durable**, and where nobody can know what happened it says so.
//! - **It remembers.** Completed records are cached, up to a number of bytes, and an operator's act
//!   is followed within a second. While the store is away they are replayed for five minutes.
//! - **It is bounded**: what runs, what waits, and what one caller has under way. See [`Builder`].
//! - **It fails closed**: without its store it runs nothing, unless the policy says otherwise. The
//!   first requests find out within their `store_timeout`, and the next ones are told at once. What
//!   the store may have granted meanwhile is given back when it answers again.
//! - **It can be watched**: an [`Observer`] hears of everything. Nothing is made where nobody
//!   listens.
//! - **It keeps house**: lapsed records are moved where they belong, old ones swept, in small
//!   batches.
//!
//! On shutdown, call [`Semel::drain`] before the runtime ends.
//!
//! # Stores
//!
//! [`MemoryStore`] is for tests. `semel-sqlite` keeps its promises through `kill -9` and power
//! cuts, in one file that several processes may share. The laws that every store keeps are in
//! [`semel_core::store`].

mod breaker;
mod cache;
mod clock;
mod drive;
mod engine;
mod flights;
mod gauge;
mod house;
pub mod joint;
pub mod keys;
mod lease;
pub mod memory;
mod observe;
mod observer;
pub mod once;
mod owners;
mod pending;
mod renewals;
mod unsettled;
mod watches;

pub use engine::{Admission, Builder, Operation, Semel};
pub use lease::Lease;
pub use memory::MemoryStore;
pub use observer::{Event, EventKind, Observer, ReplaySource, Run, StoreOperation, Would};
pub use once::{Once, OnceError, OnceErrorKind, Outcome, Stop};
pub use pending::Pending;
pub use semel_core as core;
