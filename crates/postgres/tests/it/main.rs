//! The PostgreSQL store on real servers: lost connections, other processes, other roles, locks,
//! standbys, certificates.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test reports by panicking"
)]

mod conform;
mod connection_loss;
mod failover;
mod fences;
mod fixture;
mod harness;
mod listing;
mod locks;
mod plans;
mod pooled;
mod processes;
mod restore;
mod schema;
mod set_aside;
mod standby;
mod tls;
mod velocity;
mod wal;
