//! Fronts on a real Redis: what they save, and what they never do.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports by panicking"
)]

mod fleet;

mod appetite;
mod endings;
mod harm;
mod hints;
mod operators;
mod replays;
mod wakes;
mod ways;
