//! What Semel's own tests need and its users do not: never published, a dev-dependency only.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test kit reports by panicking"
)]

pub mod clock;
pub mod conform;
pub mod differential;
pub mod explore;
pub mod fixture;
pub mod powercut;

/// Whether the long editions of the tests were asked for (`cargo xtask torture`).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the tests read it")]
pub fn torture() -> bool {
    std::env::var("SEMEL_TORTURE").is_ok_and(|value| value == "1")
}
