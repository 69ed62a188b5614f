//! Records in the user's transaction on PostgreSQL: killed connections, cut connections, foreign
//! commits, a small pool.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]
#![allow(clippy::print_stdout, reason = "a measurement that is not asserted")]

mod failures;
mod functions;
mod harness;
mod in_transaction;
mod inbox;
mod pool;
mod statements;
