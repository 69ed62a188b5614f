//! The engine, on a store in memory whose clock is tokio's, so that a test can stop time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod away;
mod basics;
mod breaker;
mod cache;
mod deadlines;
mod endings;
mod former;
mod harness;
mod limits;
mod observed;
mod observing;
mod once;
mod overtaken;
mod quotas;
mod remote;
mod retention;
mod unguarded;
mod values;
mod waiting;
