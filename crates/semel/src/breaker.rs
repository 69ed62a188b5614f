//! A circuit breaker for the store.
//!
//! It opens once a claim has waited for its whole timeout, at least [`AWAY_AFTER`], and the store
//! accepted no write meanwhile. While it is open, one claim per second probes the store, and the
//! others fail at once. The first successful write closes it. A claim that found a record proves
//! only that the store can be read, as with a synchronous standby that hangs: repeats are then
//! answered from their records, and the next claim probes at once. A slow, busy or damaged store
//! does not open it, because it replies.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use semel_core::{Claimed, Fenced, Snapshot, time::millis};

use crate::clock::EngineClock;

/// The interval between probing claims while the breaker is open.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The minimum wait of a claim that opens the breaker. All routes share one breaker, and a claim
/// with a shorter timeout may only have met a slow store.
const AWAY_AFTER: Duration = Duration::from_secs(1);

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
    /// When the store last accepted a write, in milliseconds.
    written: AtomicU64,
    /// When the store last replied without a write, in milliseconds.
    read: AtomicU64,
    /// Whether the store can be read while the breaker is open.
    readable: AtomicBool,
    /// When the next probe is allowed, in milliseconds; zero while the breaker is closed.
    probe: AtomicU64,
}

/// The last replies of the store, as known at one time.
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
        let (probe, next) = (self.probe.load(Ordering::Acquire), millis(now + PROBE_INTERVAL));
        // Of concurrent requests, one becomes the probe.
        let swap = || self.probe.compare_exchange(probe, next, Ordering::AcqRel, Ordering::Acquire);
        probe == 0 || (probe <= millis(now) && swap().is_ok())
    }

    /// The claim that was admitted proved no write: the next one may go through at once.
    pub(crate) fn return_probe(&self, now: Duration) {
        let due = millis(now).max(1);
        let due = |probe| (probe != 0).then_some(due);
        let _ = self.probe.fetch_update(Ordering::AcqRel, Ordering::Acquire, due);
    }

    /// Whether the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.probe.load(Ordering::Acquire) != 0
    }

    pub(crate) fn last_answer(&self, clock: EngineClock) -> LastAnswer {
        self.last_answer_at(clock.awake())
    }

    fn last_answer_at(&self, now: Duration) -> LastAnswer {
        let [written, read] = [&self.written, &self.read].map(|at| at.load(Ordering::Relaxed));
        LastAnswer { written, read, known_at: now }
    }

    /// Whether the store can be read while the breaker is open.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Relaxed)
    }

    /// The store accepted a write.
    pub(crate) fn close(&self, now: Duration) {
        store_time(&self.written, now);
        if self.is_open() {
            self.probe.store(0, Ordering::Release);
        }
    }

    /// The store replied without a write.
    pub(crate) fn on_read(&self, now: Duration) {
        store_time(&self.read, now);
        if self.is_open() {
            self.readable.store(true, Ordering::Relaxed);
        }
    }

    /// A read has failed.
    pub(crate) fn on_read_failed(&self) {
        self.readable.store(false, Ordering::Relaxed);
    }

    /// A claim timed out, and this was the last answer before it was sent.
    pub(crate) fn open(&self, before: LastAnswer, clock: EngineClock) {
        self.open_at(before, clock.awake());
    }

    fn open_at(&self, before: LastAnswer, now: Duration) {
        let waited = now.saturating_sub(before.known_at);
        let last = self.last_answer_at(now);
        if waited >= AWAY_AFTER && last.written == before.written && !self.is_open() {
            self.readable.store(last.read != before.read, Ordering::Relaxed);
            let next = millis(now + PROBE_INTERVAL);
            let _ = self.probe.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// Stores the time of a reply. Skipped within one millisecond, because all threads share the value.
fn store_time(at: &AtomicU64, now: Duration) {
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
    fn one_claim_a_second_finds_out_and_a_success_ends_it() {
        let breaker = StoreBreaker::default();
        let before = breaker.last_answer_at(at(0));
        assert!(breaker.admits_at(at(0)) && breaker.admits_at(at(0)));
        breaker.open_at(before, at(2_000));
        assert!(breaker.is_open());
        let admitted = (2_000..12_000).filter(|now| breaker.admits_at(at(*now))).count();
        assert_eq!(admitted, 9, "the first after a second");
        breaker.open_at(before, at(12_000));
        assert!(breaker.admits_at(at(12_000)), "another failure does not put it off");
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
    fn a_store_that_took_a_write_meanwhile_is_not_away() {
        let breaker = StoreBreaker::default();
        let before = breaker.last_answer_at(at(0));
        breaker.close(at(0));
        breaker.open_at(before, at(2_000));
        assert!(!breaker.is_open());
        breaker.open_at(breaker.last_answer_at(at(2_000)), at(4_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_claim_that_waited_for_less_than_a_second_proves_nothing() {
        let breaker = StoreBreaker::default();
        breaker.open_at(breaker.last_answer_at(at(5_000)), at(5_999));
        assert!(!breaker.is_open());
        breaker.open_at(breaker.last_answer_at(at(5_000)), at(6_000));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_store_that_is_away_can_be_read_if_it_answered_meanwhile() {
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
