//! Many gateways on one PostgreSQL with Redis in front, and what can happen to that: several
//! processes of the real binary, a real database, and a real Redis that comes to harm.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../fleet/harness.rs"]
#[allow(dead_code, reason = "not everything that others need is needed here")]
mod harness;

mod chaos;
mod harm;
mod load;
