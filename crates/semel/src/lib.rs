//! Makes every retry harmless: for each key an operation runs once, and every repeat gets the first
//! answer back.
//!
//! This crate is where the engine lives. So far it has the [`memory`] store, which keeps every law
//! of
//! [`semel_core::store`] but the durable one: it is meant for tests.

pub mod memory;

pub use memory::MemoryStore;
pub use semel_core as core;
