//! When Redis is left alone because it hurts, and when it is tried again.
//!
//! Pure: what happened comes in, what to do comes out.

use std::time::Duration;

/// Whoever asks waits at most this long. While an answer takes longer, nobody asks.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(50);

/// An answer that takes longer is slow.
const SLOW: Duration = Duration::from_millis(5);

/// How many more answers may be slow than quick. More than half of them slow get there in the end,
/// fewer never do.
const STRIKES_MAX: u32 = 16;

const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(5);

/// How long it must go well before a relapse counts as a first one.
const WELL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Breaker {
    strikes: u32,
    rest: Duration,
    /// For how long it has gone well.
    well: Duration,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// Too slow, too often.
    Bad,
}

impl Breaker {
    pub(crate) const fn new() -> Self {
        Self { strikes: 0, rest: REST_MIN, well: Duration::ZERO }
    }

    /// An answer came after `took`, and `since` after the one before it.
    pub(crate) fn on_answer(&mut self, took: Duration, since: Duration) -> Health {
        self.well = self.well.saturating_add(since);
        if self.well >= WELL {
            self.rest = REST_MIN;
        }
        if took > SLOW {
            self.strikes = self.strikes.saturating_add(1);
        } else {
            self.strikes = self.strikes.saturating_sub(1);
        }
        if self.strikes < STRIKES_MAX { Health::Good } else { Health::Bad }
    }

    /// It went out. How long to leave it alone before it is tried again: twice as long each time.
    pub(crate) fn on_out(&mut self) -> Duration {
        let rest = self.rest;
        (self.strikes, self.well) = (0, Duration::ZERO);
        self.rest = rest.saturating_mul(2).min(REST_MAX);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_millis(1);
    const TARDY: Duration = Duration::from_millis(6);

    /// Whether it goes out when of every ten answers so many are slow.
    fn goes_out(slow_of_ten: u32) -> bool {
        let mut breaker = Breaker::new();
        (0..10_000_u32).any(|at| {
            let took = if at % 10 < slow_of_ten { TARDY } else { QUICK };
            breaker.on_answer(took, QUICK) == Health::Bad
        })
    }

    #[test]
    fn it_goes_out_when_more_than_half_of_the_answers_are_slow() {
        assert!(!goes_out(0));
        assert!(!goes_out(4));
        assert!(goes_out(6));
        assert!(goes_out(10));
    }

    #[test]
    fn a_few_slow_answers_do_no_harm() {
        let mut breaker = Breaker::new();
        for _ in 1..STRIKES_MAX {
            assert_eq!(breaker.on_answer(TARDY, QUICK), Health::Good);
        }
        assert_eq!(breaker.on_answer(TARDY, QUICK), Health::Bad);
    }

    #[test]
    fn each_rest_is_twice_as_long_up_to_a_limit() {
        let mut breaker = Breaker::new();
        let rests: Vec<_> = (0..8).map(|_| breaker.on_out().as_millis()).collect();
        assert_eq!(rests, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }

    #[test]
    fn a_relapse_is_a_relapse_until_it_went_well_for_a_while() {
        let mut breaker = Breaker::new();
        breaker.on_out();
        breaker.on_answer(QUICK, Duration::from_secs(9));
        assert_eq!(breaker.on_out(), 2 * REST_MIN);
        breaker.on_answer(QUICK, Duration::from_secs(9));
        breaker.on_answer(QUICK, Duration::from_secs(1));
        assert_eq!(breaker.on_out(), REST_MIN);
    }
}
