//! Operators' commands, with the real program on real stores and real servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod bench;
mod remote;
mod served;
mod store;
