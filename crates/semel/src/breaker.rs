//! A circuit breaker for the store.
//!
//! It opens when a claim has timed out after at least [`OPEN_AFTER_MIN`] and the store has accepted
//! no write during that time. While it is open, one claim per second probes the store, and the
//! others fail at once. The first successful write closes it. A claim that finds a record proves
//! only that the store can be read; that happens when a synchronous standby hangs. While the store
//! is readable, repeats are answered from their records. After such a claim the next one may probe
//! at once. A slow, busy or damaged store does not open it, because it replies.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use semel_core::{Claimed, Fenced, Snapshot, time::millis};

use crate::clock::EngineClock;

/// The interval between probing claims while the breaker is open.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time without a reply before a claim opens the breaker. A claim with a shorter timeout
/// may have timed out because the store is slow, and all routes share one breaker.
const OPEN_AFTER_MIN: Duration = Duration::from_secs(1);

/// Whether a reply proves that the store accepts writes.
pub(crate) trait ProvesWrite {
    fn proves_write(&self) -> bool;
}

impl ProvesWrite for Claimed {
    fn proves_write(&self) -> bool {
        matches!(self, Self::Granted(_))
    }
}

impl ProvesWrite for Fenced {
    fn proves_write(&self) -> bool {
        *self == Self::Applied
    }
}

impl ProvesWrite for Option<Snapshot> {
    fn proves_write(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
pub(crate) struct StoreBreaker {
    /// When the store last accepted a write.
    last_write_ms: AtomicU64,
    /// When the store last replied without a write.
    last_read_ms: AtomicU64,
    /// Whether the store can be read while the breaker is open.
    is_readable: AtomicBool,
    /// When the next probe is allowed; zero while the breaker is closed.
    next_probe_ms: AtomicU64,
}

/// When the store last accepted a write and last replied without one, as of `known_at`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastAnswer {
    written: u64,
    read: u64,
    known_at: Duration,
}

impl StoreBreaker {
    /// Whether a claim may be sent now. While the breaker is open, one per second may.
    pub(crate) fn admits(&self, clock: EngineClock) -> bool {
        !self.is_open() || self.admits_at(clock.awake())
    }

    fn admits_at(&self, now: Duration) -> bool {
        let (probe, next) =
            (self.next_probe_ms.load(Ordering::Acquire), millis(now + PROBE_INTERVAL));
        // Of concurrent requests, one becomes the probe.
        let swap = || {
            self.next_probe_ms.compare_exchange(probe, next, Ordering::AcqRel, Ordering::Acquire)
        };
        probe == 0 || (probe <= millis(now) && swap().is_ok())
    }

    /// The admitted claim did not show whether the store accepts writes, so the next claim may
    /// probe at once.
    pub(crate) fn return_probe(&self, now: Duration) {
        let due = millis(now).max(1);
        let due = |probe| (probe != 0).then_some(due);
        let _ = self.next_probe_ms.fetch_update(Ordering::AcqRel, Ordering::Acquire, due);
    }

    /// Whether the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.next_probe_ms.load(Ordering::Acquire) != 0
    }

    pub(crate) fn last_answer(&self, clock: EngineClock) -> LastAnswer {
        self.last_answer_at(clock.awake())
    }

    fn last_answer_at(&self, now: Duration) -> LastAnswer {
        let [written, read] =
            [&self.last_write_ms, &self.last_read_ms].map(|at| at.load(Ordering::Relaxed));
        LastAnswer { written, read, known_at: now }
    }

    /// Whether the store can be read while the breaker is open.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable.load(Ordering::Relaxed)
    }

    /// Records that the store accepted a write, and closes an open breaker.
    pub(crate) fn close(&self, now: Duration) {
        record_time(&self.last_write_ms, now);
        if self.is_open() {
            self.next_probe_ms.store(0, Ordering::Release);
        }
    }

    /// The store replied without a write.
    pub(crate) fn on_read(&self, now: Duration) {
        record_time(&self.last_read_ms, now);
        if self.is_open() {
            self.is_readable.store(true, Ordering::Relaxed);
        }
    }

    /// A read has failed.
    pub(crate) fn on_read_failed(&self) {
        self.is_readable.store(false, Ordering::Relaxed);
    }

    /// Opens the breaker if the claim that timed out waited long enough and the store accepted no
    /// write since `before`, its activity when the claim was sent.
    pub(crate) fn open(&self, before: LastAnswer, clock: EngineClock) {
        self.open_at(before, clock.awake());
    }

    fn open_at(&self, before: LastAnswer, now: Duration) {
        let waited = now.saturating_sub(before.known_at);
        let last = self.last_answer_at(now);
        if waited >= OPEN_AFTER_MIN && last.written == before.written && !self.is_open() {
            self.is_readable.store(last.read != before.read, Ordering::Relaxed);
            let next = millis(now + PROBE_INTERVAL);
            let _ =
                self.next_probe_ms.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Records the time of a reply. A write within the same millisecond is skipped, to avoid contention
/// between threads.
fn record_time(at: &AtomicU64, now: Duration) {
    let now = millis(now).max(1);
    if at.load(Ordering::Relaxed) != now {
        at.store(now, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn an_open_breaker_admits_one_probe_a_second_and_a_write_closes_it() {
        let breaker = StoreBreaker::default();
        let before = breaker.last_answer_at(at(0));
        assert!(breaker.admits_at(at(0)) && breaker.admits_at(at(0)));
        breaker.open_at(before, at(2_000));
        assert!(breaker.is_open());
        let admitted = (2_000..12_000).filter(|now| breaker.admits_at(at(*now))).count();
        assert_eq!(admitted, 9, "the first probe is one second after opening");
        breaker.open_at(before, at(12_000));
        assert!(breaker.admits_at(at(12_000)), "another failure does not delay the next probe");
        breaker.close(at(12_001));
        assert!(!breaker.is_open());
        assert!(breaker.admits_at(at(12_001)) && breaker.admits_at(at(12_001)));
    }

    #[test]
    fn a_probe_that_proved_no_write_is_followed_by_another() {
        let breaker = StoreBreaker::default();
        breaker.return_probe(at(1));
        assert!(!breaker.is_open(), "it does not open a closed one");
        breaker.open_at(breaker.last_answer_at(at(0)), at(2_000));
        assert!(breaker.admits_at(at(3_000)) && !breaker.admits_at(at(3_001)));
        breaker.return_probe(at(3_002));
        assert!(breaker.admits_at(at(3_002)) && !breaker.admits_at(at(3_003)));
        breaker.close(at(3_004));
        breaker.return_probe(at(3_005));
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_write_during_the_wait_keeps_the_breaker_closed() {
        let breaker = StoreBreaker::default();
        let before = breaker.last_answer_at(at(0));
        breaker.close(at(0));
        breaker.open_at(before, at(2_000));
        assert!(!breaker.is_open());
        breaker.open_at(breaker.last_answer_at(at(2_000)), at(4_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_claim_that_waited_for_less_than_a_second_does_not_open_the_breaker() {
        let breaker = StoreBreaker::default();
        breaker.open_at(breaker.last_answer_at(at(5_000)), at(5_999));
        assert!(!breaker.is_open());
        breaker.open_at(breaker.last_answer_at(at(5_000)), at(6_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn an_open_breaker_is_readable_if_a_read_succeeded_during_the_wait() {
        let breaker = StoreBreaker::default();
        breaker.on_read(at(0));
        breaker.open_at(breaker.last_answer_at(at(1)), at(2_000));
        assert!(breaker.is_open() && !breaker.is_readable());
        breaker.on_read(at(2_001));
        assert!(breaker.is_open() && breaker.is_readable());
        breaker.on_read_failed();
        assert!(breaker.is_open() && !breaker.is_readable());

        breaker.close(at(3_000));
        let before = breaker.last_answer_at(at(3_001));
        breaker.on_read(at(3_002));
        breaker.open_at(before, at(5_001));
        assert!(breaker.is_open() && breaker.is_readable());
    }
}
