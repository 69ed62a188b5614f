//! A primary and an asynchronous standby, whose connection can be interrupted.

use super::Postgres;
use crate::wire::Proxy;

/// A primary, and a standby that no commit waits for.
#[derive(Debug)]
pub struct ReplicatedPair {
    /// The first primary.
    pub primary: Postgres,
    /// Its successor, once it is promoted.
    pub standby: Postgres,
    /// The connection between them.
    pub wire: Proxy,
}

impl ReplicatedPair {
    /// Starts both.
    ///
    /// # Panics
    ///
    /// If one of them does not start.
    #[must_use]
    pub fn start() -> Self {
        let primary = Postgres::start(&[]);
        let wire = Proxy::start(primary.port());
        let standby = primary.asynchronous_standby_through(wire.port());
        Self { primary, standby, wire }
    }

    /// The URL of the database on either server, the first primary first.
    #[must_use]
    pub fn url(&self) -> String {
        let (first, second) = (self.primary.port(), self.standby.port());
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres")
    }

    /// Waits until the standby has replayed all commits.
    pub fn replicate(&self) {
        let all = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()";
        self.primary.wait_for(all);
    }

    /// Kills the primary and promotes the standby.
    pub fn fail_over(&mut self) {
        self.primary.kill();
        self.wire.cut();
        self.standby.promote();
    }

    /// Starts the former primary again and waits until it takes writes.
    pub fn restart_former_primary(&mut self) {
        self.primary.start_again();
        self.primary.wait_for("SELECT 1 WHERE NOT pg_is_in_recovery()");
    }

    /// Closes every connection of a store to the new primary.
    pub fn disconnect(&self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE application_name = 'semel'";
        self.standby.sql("postgres", end);
    }
}
