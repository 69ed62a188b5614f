//! One transaction on PostgreSQL against the world: killed connections, cut wires, commits behind
//! its back, a small pool.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "a figure that is not judged")]

mod bench;
mod handing;
mod harm;
mod inbox;
mod message;
mod pool;
mod within;
