//! Caches on a real Redis.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod harness;

mod connections;
mod hints;
mod lookup_budget;
mod notifications;
mod operators;
mod redis_failures;
mod replays;
mod unfinished_records;
