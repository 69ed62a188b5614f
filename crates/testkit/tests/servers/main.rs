//! Tests of the servers in the kit: they are real, and come to the harm that they are meant to.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod others;
mod postgres;
mod wire;
