//! Operators' commands, with the real program on real stores and real servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

#[path = "../common/records.rs"]
#[allow(dead_code, reason = "other test binaries use the rest of it")]
mod records;

mod harness;
mod many;
mod remote;
mod served;
mod store;
mod terminal;
