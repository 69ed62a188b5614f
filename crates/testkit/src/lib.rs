//! Tools for testing Semel, in its own crate so that none of them reaches a user's binary.

pub mod powercut;

/// Whether the long editions of the tests were asked for (`cargo xtask torture`).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place where the tests read it")]
pub fn torture() -> bool {
    std::env::var("SEMEL_TORTURE").is_ok_and(|value| value == "1")
}
