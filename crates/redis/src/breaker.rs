//! The circuit breaker: when a slow Redis is taken out of use, and when it is retried.
//!
//! Pure: no I/O and no clock.

use std::time::Duration;

/// The longest wait of a lookup. While a reply takes longer, no lookup is sent.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_millis(50);

/// A reply that takes longer is slow.
const SLOW_REPLY: Duration = Duration::from_millis(5);

/// How many more replies may be slow than quick. More than half of them slow reach it in the end,
/// fewer never do.
const STRIKES_MAX: u32 = 16;

const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// How long Redis must be stable before the backoff is reset.
const STABLE_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct CacheBreaker {
    strikes: u32,
    backoff: Duration,
    /// For how long it has been stable.
    stable_for: Duration,
}

/// Whether Redis stays in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheHealth {
    Good,
    /// Too slow, too often.
    Bad,
}

impl CacheBreaker {
    pub(crate) const fn new() -> Self {
        Self { strikes: 0, backoff: BACKOFF_MIN, stable_for: Duration::ZERO }
    }

    /// A reply came after `took`, and `since` after the previous one.
    pub(crate) fn on_reply(&mut self, took: Duration, since: Duration) -> CacheHealth {
        self.stable_for = self.stable_for.saturating_add(since);
        if self.stable_for >= STABLE_AFTER {
            self.backoff = BACKOFF_MIN;
        }
        if took > SLOW_REPLY {
            self.strikes = self.strikes.saturating_add(1);
        } else {
            self.strikes = self.strikes.saturating_sub(1);
        }
        if self.strikes < STRIKES_MAX { CacheHealth::Good } else { CacheHealth::Bad }
    }

    /// Redis went out of use. Returns the backoff before the next attempt, which doubles each time.
    pub(crate) fn on_outage(&mut self) -> Duration {
        let backoff = self.backoff;
        (self.strikes, self.stable_for) = (0, Duration::ZERO);
        self.backoff = backoff.saturating_mul(2).min(BACKOFF_MAX);
        backoff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);
    const SLOW: Duration = Duration::from_millis(6);

    /// Whether it opens when this many of ten replies are slow.
    fn opens(slow_of_ten: u32) -> bool {
        let mut breaker = CacheBreaker::new();
        (0..10_000_u32).any(|at| {
            let took = if at % 10 < slow_of_ten { SLOW } else { QUICK };
            breaker.on_reply(took, QUICK) == CacheHealth::Bad
        })
    }

    #[test]
    fn the_breaker_opens_when_more_than_half_of_the_replies_are_slow() {
        assert!(!opens(0));
        assert!(!opens(4));
        assert!(opens(6));
        assert!(opens(10));
    }

    #[test]
    fn a_few_slow_replies_are_tolerated() {
        let mut breaker = CacheBreaker::new();
        for _ in 1..STRIKES_MAX {
            assert_eq!(breaker.on_reply(SLOW, QUICK), CacheHealth::Good);
        }
        assert_eq!(breaker.on_reply(SLOW, QUICK), CacheHealth::Bad);
    }

    #[test]
    fn the_backoff_doubles_up_to_a_limit() {
        let mut breaker = CacheBreaker::new();
        let rests: Vec<_> = (0..8).map(|_| breaker.on_outage().as_millis()).collect();
        assert_eq!(rests, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn the_backoff_resets_only_after_a_stable_period() {
        let mut breaker = CacheBreaker::new();
        breaker.on_outage();
        breaker.on_reply(QUICK, Duration::from_secs(9));
        assert_eq!(breaker.on_outage(), 2 * BACKOFF_MIN);
        breaker.on_reply(QUICK, Duration::from_secs(9));
        breaker.on_reply(QUICK, Duration::from_secs(1));
        assert_eq!(breaker.on_outage(), BACKOFF_MIN);
    }
}
