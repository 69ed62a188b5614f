//! Test support for Semel's own crates: never published, a dev-dependency only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test kit reports by panicking"
)]

use std::hash::{BuildHasher as _, RandomState};

pub mod differential;
pub mod explore;
pub mod flaky_store;
pub mod gate;
pub mod http;
pub mod issuer;
pub mod powercut;
pub mod program;
pub mod servers;
pub mod state_tables;
pub mod transactional;
pub mod wire;

pub use semel_conformance::{clock, conform, fixture, with};

/// Whether the long editions of the tests were asked for (`cargo xtask torture`).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the tests read it")]
pub fn torture() -> bool {
    std::env::var("SEMEL_TORTURE").is_ok_and(|value| value == "1")
}

/// Where random choices come from: the number in `SEMEL_SEED`, to repeat what a failure has shown,
/// or else another one with every call.
///
/// # Panics
///
/// If `SEMEL_SEED` is not a number, rather than repeat something else.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the tests read it")]
pub fn seed() -> u64 {
    match std::env::var("SEMEL_SEED") {
        Ok(text) => text.parse().expect("SEMEL_SEED is a number, as a failure prints it"),
        Err(_) => RandomState::new().hash_one("a seed"),
    }
}
