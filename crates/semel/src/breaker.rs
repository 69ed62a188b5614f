//! Whether the store is known to be away.
//!
//! It is once a claim has waited for its whole timeout and the store answered nothing that was
//! asked meanwhile. From then on one claim a second goes through to find out, and the others are
//! answered at once. The first write that succeeds ends it. A store that is slow, busy or damaged
//! is not away: it answers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use semel_core::ProcessTime;

/// How often a claim goes through while the store is away.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Breaker {
    /// When the store last answered, in milliseconds.
    answered: AtomicU64,
    /// When the next claim goes through, in milliseconds; zero while the store is not away.
    probe: AtomicU64,
}

impl Breaker {
    /// Whether a claim may be asked now. While the store is away that is so for one a second.
    pub(crate) fn admits(&self, now: ProcessTime) -> bool {
        let probe = self.probe.load(Ordering::Acquire);
        if probe == 0 {
            return true;
        }
        // Of all who come when the time has come, one goes.
        let next = now.after(PROBE_INTERVAL).as_millis();
        let swap = || self.probe.compare_exchange(probe, next, Ordering::AcqRel, Ordering::Acquire);
        probe <= now.as_millis() && swap().is_ok()
    }

    /// Whether the store is known to be away.
    pub(crate) fn is_open(&self) -> bool {
        self.probe.load(Ordering::Acquire) != 0
    }

    /// The store has taken a write.
    pub(crate) fn close(&self, now: ProcessTime) {
        // Most writes are many to a millisecond, and all threads share this.
        if self.answered.load(Ordering::Relaxed) != now.as_millis() {
            self.answered.store(now.as_millis(), Ordering::Relaxed);
        }
        if self.is_open() {
            self.probe.store(0, Ordering::Release);
        }
    }

    /// A claim that began at `began` was not answered in time.
    pub(crate) fn open(&self, began: ProcessTime, now: ProcessTime) {
        if self.answered.load(Ordering::Relaxed) <= began.as_millis() {
            let next = now.after(PROBE_INTERVAL).as_millis().max(1);
            let _ = self.probe.compare_exchange(0, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> ProcessTime {
        ProcessTime::from_millis(millis)
    }

    #[test]
    fn one_claim_a_second_finds_out_and_a_success_ends_it() {
        let breaker = Breaker::default();
        assert!(breaker.admits(at(0)) && breaker.admits(at(0)));
        breaker.open(at(0), at(2_000));
        assert!(breaker.is_open());
        let admitted = (2_000..12_000).filter(|now| breaker.admits(at(*now))).count();
        assert_eq!(admitted, 9, "the first after a second");
        breaker.open(at(9_000), at(12_000));
        assert!(breaker.admits(at(12_000)), "another failure does not put it off");
        breaker.close(at(12_001));
        assert!(!breaker.is_open());
        assert!(breaker.admits(at(12_001)) && breaker.admits(at(12_001)));
    }

    #[test]
    fn a_store_that_answered_somebody_meanwhile_is_not_away() {
        let breaker = Breaker::default();
        breaker.close(at(1_000));
        breaker.open(at(500), at(2_500));
        assert!(!breaker.is_open());
        breaker.open(at(1_000), at(3_000));
        assert!(breaker.is_open());
    }
}
