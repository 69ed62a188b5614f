//! Whether the store is known to be away.
//!
//! It is once a claim has waited for its whole timeout and the store took no write that was asked
//! meanwhile. From then on one claim a second goes through to find out, and the others are answered
//! at once. The first write that succeeds ends it. A store that is slow, busy or damaged is not
//! away: it answers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use semel_core::time::millis;

use crate::clock::Clock;

/// How often a claim goes through while the store is away.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// When the store last took a write, in milliseconds.
    answered: AtomicU64,
    /// When the next claim goes through, in milliseconds; zero while the store is not away.
    probe: AtomicU64,
}

/// The last answer that was heard at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastAnswer(u64);

impl Breaker {
    /// Whether a claim may be asked now. While the store is away that is so for one a second.
    pub(crate) fn admits(&self, clock: Clock) -> bool {
        !self.is_open() || self.admits_at(clock.awake())
    }

    fn admits_at(&self, now: Duration) -> bool {
        let (probe, next) = (self.probe.load(Ordering::Acquire), millis(now + PROBE_INTERVAL));
        // Of all who come when the time has come, one goes.
        let swap = || self.probe.compare_exchange(probe, next, Ordering::AcqRel, Ordering::Acquire);
        probe == 0 || (probe <= millis(now) && swap().is_ok())
    }

    /// Whether the store is known to be away.
    pub(crate) fn is_open(&self) -> bool {
        self.probe.load(Ordering::Acquire) != 0
    }

    pub(crate) fn last_answer(&self) -> LastAnswer {
        LastAnswer(self.answered.load(Ordering::Relaxed))
    }

    /// The store has taken a write.
    pub(crate) fn close(&self, now: Duration) {
        // Most writes are many to a millisecond, and all threads share this.
        let now = millis(now).max(1);
        if self.answered.load(Ordering::Relaxed) != now {
            self.answered.store(now, Ordering::Relaxed);
        }
        if self.is_open() {
            self.probe.store(0, Ordering::Release);
        }
    }

    /// A claim was not answered in time, and this was the last answer before it was asked.
    pub(crate) fn open(&self, before: LastAnswer, clock: Clock) {
        self.open_at(before, clock.awake());
    }

    fn open_at(&self, before: LastAnswer, now: Duration) {
        if self.last_answer() == before {
            let next = millis(now + PROBE_INTERVAL);
            let _ = self.probe.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed);
        }
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
        let breaker = Breaker::default();
        let before = breaker.last_answer();
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
    fn a_store_that_answered_somebody_meanwhile_is_not_away() {
        let breaker = Breaker::default();
        let before = breaker.last_answer();
        breaker.close(at(0));
        breaker.open_at(before, at(2_000));
        assert!(!breaker.is_open());
        breaker.open_at(breaker.last_answer(), at(4_000));
        assert!(breaker.is_open());
    }
}
