//! Real servers for tests: NATS, PostgreSQL, `PgBouncer` and Redis from their Debian packages.
//!
//! Each runs on a free port of 127.0.0.1 in a temporary folder of its own, and ends with the test
//! process however that ends, folder included (`process.rs` says how). A server that is missing is
//! a failure that says what to install, never a test that is skipped.
//!
//! ```no_run
//! use semel_testkit::servers;
//!
//! let url = servers::postgres().fresh_schema_url(); // the shared one, for most tests
//! let mut own = servers::Postgres::start(&[("wal_level", "replica")]);
//! let standby = own.standby();
//! own.kill();
//! standby.promote();
//! # drop(url);
//! ```

mod nats;
mod pgbouncer;
mod postgres;
mod process;
mod redis;
mod replicated;

pub use nats::Nats;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use redis::{Redis, RedisSnapshot};
pub use replicated::ReplicatedPair;

use std::sync::LazyLock;

/// The PostgreSQL that the tests of one process share: `fsync` on, as a store of money has it.
///
/// A test that needs a clean database takes its own schema or database; one that kills, stops or
/// configures a server starts one of its own.
#[must_use]
pub fn postgres() -> &'static Postgres {
    static SHARED: LazyLock<Postgres> = LazyLock::new(|| Postgres::start(&[]));
    &SHARED
}
