//! What Semel's own tests need and its users do not: never published, a dev-dependency only.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a kit of tests says what is wrong by panicking"
)]

pub mod explore;
