//! What an answer of the upstream proves about a held operation, and what follows from it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod decide;
mod judge;
