//! The lanes that are aside: when each is tried again.

use std::{collections::BTreeMap, time::Duration};

use semel_core::retry::{Backoff, Jitter};
use tokio::time::Instant;

use crate::store::{AsideAttempt, AsideLane};

/// The delays between attempts.
pub(crate) const BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    throttled_base: Duration::from_secs(1),
    max: Duration::from_secs(300),
    jitter: Jitter::HalfAboveBase,
};

/// The longest delay that a receiver can ask for.
pub(crate) const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The lanes of the owned buckets that are aside.
#[derive(Debug, Default)]
pub(crate) struct Lanes(BTreeMap<(i16, String), LaneState>);

#[derive(Clone, Debug)]
struct LaneState {
    attempts: u32,
    due: Instant,
    parked: bool,
    in_flight: bool,
    messages: u64,
}

impl Lanes {
    /// Replaces the lanes by what the database has. An attempt that runs is kept.
    pub(crate) fn reload(&mut self, lanes: Vec<AsideLane>, now: Instant) {
        let before = std::mem::take(&mut self.0);
        for lane in lanes {
            let key = (lane.bucket, lane.lane);
            let in_flight = before.get(&key).is_some_and(|state| state.in_flight);
            let state = LaneState {
                attempts: lane.attempts,
                due: now + lane.due,
                parked: lane.parked,
                in_flight,
                messages: lane.messages,
            };
            self.0.insert(key, state);
        }
    }

    /// Whether a lane is aside.
    pub(crate) fn contains(&self, bucket: i16, lane: &str) -> bool {
        self.0.contains_key(&(bucket, lane.to_owned()))
    }

    /// Messages that are aside.
    pub(crate) fn messages(&self) -> u64 {
        self.0.values().fold(0, |sum, state| sum.saturating_add(state.messages))
    }

    /// Lanes whose first message is parked.
    pub(crate) fn parked(&self) -> u64 {
        u64::try_from(self.0.values().filter(|state| state.parked).count()).unwrap_or(u64::MAX)
    }

    /// Adds a message to its lane. A failed one is its first.
    pub(crate) fn add(
        &mut self,
        bucket: i16,
        lane: String,
        failed: Option<&AsideAttempt>,
        now: Instant,
    ) {
        let state = self.0.entry((bucket, lane)).or_insert(LaneState {
            attempts: 0,
            due: now,
            parked: false,
            in_flight: false,
            messages: 0,
        });
        state.messages = state.messages.saturating_add(1);
        if let Some(failed) = failed {
            state.attempts = failed.attempts;
            state.due = now + failed.delay;
            state.parked = failed.parked;
        }
    }

    /// Up to `limit` lanes to be tried now. Each is in flight until [`end`](Self::end).
    pub(crate) fn begin_due(&mut self, now: Instant, limit: usize) -> Vec<(i16, String)> {
        let due = self
            .0
            .iter_mut()
            .filter(|(_, lane)| !lane.parked && !lane.in_flight && lane.due <= now);
        let begun = due.take(limit).map(|(key, lane)| {
            lane.in_flight = true;
            key.clone()
        });
        begun.collect()
    }

    /// Ends an attempt: the first message is delivered, or has failed.
    pub(crate) fn end(&mut self, key: &(i16, String), failed: Option<&AsideAttempt>, now: Instant) {
        let Some(state) = self.0.get_mut(key) else { return };
        state.in_flight = false;
        match failed {
            None => {
                state.attempts = 0;
                state.due = now;
                state.messages = state.messages.saturating_sub(1);
            }
            Some(failed) => {
                state.attempts = failed.attempts;
                state.due = now + failed.delay;
                state.parked = failed.parked;
            }
        }
    }

    /// Forgets a lane that has no message left.
    pub(crate) fn remove(&mut self, key: &(i16, String)) {
        self.0.remove(key);
    }
}

/// The attempt that failed, and what follows from it.
pub(crate) fn failed_attempt(
    number: i64,
    attempts: u32,
    attempts_max: u32,
    refused: bool,
    after: Option<Duration>,
    reason: String,
) -> AsideAttempt {
    let delay = BACKOFF.delay(attempts.saturating_sub(1), random());
    let delay = after.map_or(delay, |after| delay.max(after.min(RETRY_AFTER_MAX)));
    AsideAttempt { number, attempts, delay, parked: refused || attempts >= attempts_max, reason }
}

/// A number between 0 and 1.
pub(crate) fn random() -> f64 {
    // Without random numbers the delay is the whole bound.
    getrandom::u32().map_or(1.0, |bits| f64::from(bits) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_tried_when_it_is_due_and_once_at_a_time() {
        let now = Instant::now();
        let mut lanes = Lanes::default();
        let failed = failed_attempt(7, 1, 5, false, Some(Duration::from_secs(9)), "x".to_owned());
        assert_eq!(failed.delay, Duration::from_secs(9));
        lanes.add(3, "ka".to_owned(), Some(&failed), now);
        lanes.add(3, "ka".to_owned(), None, now);
        assert_eq!(lanes.messages(), 2);
        assert_eq!(lanes.begin_due(now + Duration::from_secs(8), 9), []);
        let later = now + Duration::from_secs(9);
        let key = (3, "ka".to_owned());
        assert_eq!(lanes.begin_due(later, 9), std::slice::from_ref(&key));
        assert_eq!(lanes.begin_due(later, 9), []);
        lanes.end(&key, None, later);
        assert_eq!(lanes.begin_due(later, 9), [key]);
    }

    #[test]
    fn a_lane_is_parked_after_its_last_attempt_or_a_refusal() {
        assert!(!failed_attempt(1, 4, 5, false, None, String::new()).parked);
        assert!(failed_attempt(1, 5, 5, false, None, String::new()).parked);
        assert!(failed_attempt(1, 1, 5, true, None, String::new()).parked);
        let forever = Some(Duration::from_secs(1 << 40));
        let bounded = failed_attempt(1, 1, 5, false, forever, String::new());
        assert_eq!(bounded.delay, RETRY_AFTER_MAX);
        let mut lanes = Lanes::default();
        let parked = failed_attempt(1, 5, 5, false, None, String::new());
        let now = Instant::now();
        lanes.add(0, "ka".to_owned(), Some(&parked), now);
        assert_eq!(lanes.begin_due(now + RETRY_AFTER_MAX, 9), []);
        assert_eq!(lanes.parked(), 1);
    }
}
