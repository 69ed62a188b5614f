//! The PostgreSQL store against the world: lost connections, other processes, other roles, locks,
//! standbys, certificates.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

mod aside;
mod bench;
mod common;
mod conform;
mod failover;
mod fences;
mod listing;
mod locks;
mod lost;
mod neighbours;
mod plans;
mod pooled;
mod restored;
mod schema;
mod standby;
mod tls;
mod wal;
