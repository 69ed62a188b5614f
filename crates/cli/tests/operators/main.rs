//! Operators' commands, with the real program on real stores and real servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod callers;
mod harness;
mod many;
mod remote;
mod served;
mod store;
mod terminal;
