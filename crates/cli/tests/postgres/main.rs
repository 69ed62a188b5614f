//! A PostgreSQL store and a Redis cache as an operator meets them: the real program, real servers,
//! and what `docs/postgres.md` says to type.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test reports by panicking"
)]

#[path = "../common/mod.rs"]
mod common;

mod away;
mod cache;
mod doctor;
mod fences;
mod harness;
mod migrate;
mod page;
mod passwords;
mod secrets;
mod stores;
