//! `[limits]`: sizes, times and counts.

use std::time::Duration;

use semel::Quotas;

use super::machine;

/// Limits on sizes, times and counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of a request's head.
    pub header_bytes: usize,
    /// The fields of a request's head.
    pub headers: usize,
    /// Timeout for receiving a head, and idle timeout of connections.
    pub header_timeout: Duration,
    /// Timeout for receiving a guarded body; idle timeout of other bodies.
    pub body_timeout: Duration,
    /// Timeout for the first byte of a guarded body.
    pub body_start_timeout: Duration,
    /// Minimum bytes per second of a body that is not guarded, once it has taken `body_timeout`; 0
    /// for none.
    pub body_rate: u64,
    /// Write timeout of a client connection, and of one HTTP/2 response.
    pub answer_timeout: Duration,
    /// Idle timeout of tunnels.
    pub tunnel_timeout: Duration,
    /// Connections of clients.
    pub connections: usize,
    /// Operations that run.
    pub in_flight: usize,
    /// Operations that one caller has running or waiting.
    pub per_caller: usize,
    /// Requests that wait for another's answer.
    pub waiting: usize,
    /// Bytes of completed records that are cached.
    pub cache_bytes: u64,
    /// Records in the store.
    pub records: usize,
    /// Size of the records in the store.
    pub store_size: u64,
    /// Free space to keep on the disk of the store.
    pub disk_free: u64,
    /// Records of one caller.
    pub records_per_caller: usize,
    /// Size of the records of one caller.
    pub store_size_per_caller: u64,
    /// Held records of one caller.
    pub held_per_caller: usize,
    /// Bytes of request bodies and answers that are in memory.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_bytes: 32 << 10,
            headers: 100,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            body_start_timeout: Duration::from_secs(10),
            body_rate: 100,
            answer_timeout: Duration::from_secs(60),
            tunnel_timeout: Duration::from_secs(10 * 60),
            connections: 10_000,
            in_flight: 10_000,
            per_caller: 2_500,
            waiting: 10_000,
            cache_bytes: 64 << 20,
            records: 100_000_000,
            store_size: 256 << 30,
            disk_free: 1 << 30,
            records_per_caller: 25_000_000,
            store_size_per_caller: 64 << 30,
            held_per_caller: 10_000,
            memory: machine::default_memory_budget(),
        }
    }
}

impl Limits {
    /// What may be in the store.
    #[must_use]
    pub fn quotas(&self) -> Quotas {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Quotas {
            records: count(self.records),
            store_bytes: self.store_size,
            disk_free_min: self.disk_free,
            records_per_caller: count(self.records_per_caller),
            bytes_per_caller: self.store_size_per_caller,
            held_per_caller: count(self.held_per_caller),
        }
    }
}
