//! The laws of a store as tests, for any implementation of [`semel_core::Store`].
//!
//! A store decides who runs an operation and who gets its answer, so it must keep every law that
//! [`semel_core::store`] states: under races, after a crash, and after a restore. This crate has
//! one case for each law and one for each cell of the table of states.
//!
//! # How to run it
//!
//! Add this crate to the dev-dependencies of the store. In a file of `tests/`, implement
//! [`Fixture`]: an empty store for each case, another handle to the same records, and a clock that
//! only the case moves. Then [`conform!`] makes each case a `#[test]`:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//!
//! use async_trait::async_trait;
//! use semel::MemoryStore;
//! use semel_conformance::{Fixture, ManualClock, conform};
//! use semel_core::Store;
//!
//! struct Memory {
//!     store: MemoryStore,
//!     clock: ManualClock,
//! }
//!
//! impl Memory {
//!     fn new() -> Self {
//!         let clock = ManualClock::new();
//!         Self { store: MemoryStore::with_clock(clock.reader()), clock }
//!     }
//! }
//!
//! #[async_trait]
//! impl Fixture for Memory {
//!     fn store(&self) -> Arc<dyn Store> {
//!         Arc::new(self.store.clone())
//!     }
//!
//!     async fn another(&self) -> Arc<dyn Store> {
//!         Arc::new(self.store.clone())
//!     }
//!
//!     async fn advance(&self, by: Duration) {
//!         self.clock.advance(by);
//!     }
//! }
//!
//! conform!(volatile, Memory::new());
//! # fn main() {}
//! ```
//!
//! The first word says what the store can do. A `volatile` store forgets with its process. A
//! `durable` store also implements [`Durable`], and a `restorable` one [`Restorable`].
//!
//! `cargo test` then shows one line for each case, such as
//! `fence::a_write_of_the_past_changes_nothing`. A case that fails says which result the store gave
//! and which one the law requires.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test kit reports by panicking"
)]

pub mod clock;
pub mod conform;
pub mod fixture;

pub use clock::ManualClock;
pub use fixture::{Durable, Fixture, Restorable};

/// The same value with some of its fields changed: for structs that only their own crate may build
/// field by field.
#[must_use]
pub fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}
