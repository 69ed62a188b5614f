//! The store's epoch as it was last heard of, and for how long that is good (law 12).

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel_core::Epoch;
use tokio::time::Instant;

/// How long what was heard is believed.
pub(crate) const TRUST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The epoch, and when it was asked for.
    heard: Option<(Epoch, Instant)>,
    /// Answers to questions from before this are too old.
    act: Option<Instant>,
}

impl Known {
    /// The epoch, if the store was heard of within the last second. Remember it before a record is
    /// read, so that what was read can be kept.
    pub(crate) fn epoch(&self, now: Instant) -> Option<Epoch> {
        let (epoch, asked) = self.lock().heard?;
        (now.saturating_duration_since(asked) < TRUST).then_some(epoch)
    }

    /// When the epoch was asked for that is known now.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.lock().heard.map(|(_, asked)| asked)
    }

    /// The store said `epoch` to a question that was asked at `asked`.
    pub(crate) fn hear(&self, epoch: Epoch, asked: Instant) {
        let mut state = self.lock();
        let newer = state.heard.is_none_or(|(_, before)| before <= asked);
        if newer && state.act.is_none_or(|act| act <= asked) {
            state.heard = Some((epoch, asked));
        }
    }

    /// An operator has acted through this process: whatever was known is not any more.
    pub(crate) fn forget(&self, now: Instant) {
        *self.lock() = State { heard: None, act: Some(now) };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: Instant, millis: u64) -> Instant {
        origin + Duration::from_millis(millis)
    }

    #[test]
    fn what_was_heard_is_good_for_a_second_from_when_it_was_asked() {
        let (known, origin) = (Known::default(), Instant::now());
        assert_eq!(known.epoch(origin), None);
        known.hear(Epoch(3), origin);
        assert_eq!(known.epoch(at(origin, 999)), Some(Epoch(3)));
        assert_eq!(known.epoch(at(origin, 1000)), None);
    }

    #[test]
    fn an_answer_that_was_overtaken_is_not_heard() {
        let (known, origin) = (Known::default(), Instant::now());
        known.hear(Epoch(4), at(origin, 10));
        known.hear(Epoch(3), origin);
        assert_eq!(known.epoch(at(origin, 20)), Some(Epoch(4)));
    }

    #[test]
    fn an_epoch_may_fall_where_a_store_was_restored() {
        let (known, origin) = (Known::default(), Instant::now());
        known.hear(Epoch(4), origin);
        known.hear(Epoch(2), at(origin, 10));
        assert_eq!(known.epoch(at(origin, 20)), Some(Epoch(2)));
    }

    #[test]
    fn after_an_act_only_a_later_question_counts() {
        let (known, origin) = (Known::default(), Instant::now());
        known.hear(Epoch(3), origin);
        known.forget(at(origin, 50));
        assert_eq!(known.epoch(at(origin, 60)), None);
        known.hear(Epoch(3), at(origin, 40));
        assert_eq!(known.epoch(at(origin, 60)), None, "asked before the act was done");
        known.hear(Epoch(4), at(origin, 60));
        assert_eq!(known.epoch(at(origin, 70)), Some(Epoch(4)));
    }
}
