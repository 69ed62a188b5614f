//! Many gateways on one PostgreSQL, and what can happen to all of them: several processes of the
//! real binary, a real database, its pooler, its standby, and a wire that fails.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod chaos;
mod failover;
mod harness;
mod load;
mod pooler;
mod stopped;
mod together;
mod velocity;
