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
pub mod fixture;
