//! Makes every retry harmless: for each key an operation runs once, and every repeat gets the first
//! answer back.
//!
//! This crate is the engine. The [`memory`] store keeps every law of [`semel_core::store`] but the
//! durable one: it is meant for tests.

mod cache;
mod clock;
mod drive;
mod engine;
mod flights;
mod gauge;
mod house;
mod lease;
pub mod memory;
mod observer;
mod pending;
mod watches;

pub use engine::{Builder, Operation, Semel};
pub use lease::Lease;
pub use memory::MemoryStore;
pub use observer::{Event, EventKind, Observer, StoreOperation};
pub use pending::Pending;
pub use semel_core as core;
