//! Makes every retry harmless: for each key an operation runs once, and every repeat gets the first
//! answer back.
//!
//! This crate is the engine. The [`memory`] store keeps every law of [`semel_core::store`] but the
//! durable one: it is meant for tests.

mod engine;
pub mod keys;
mod lease;
pub mod memory;
pub mod once;

pub use engine::{Operation, Pending, Semel};
pub use lease::Lease;
pub use memory::MemoryStore;
pub use once::{Once, OnceError, OnceErrorKind, Outcome, Stop};
pub use semel_core as core;
