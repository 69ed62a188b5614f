//! A cache of the store's epoch, valid for a second (law 12).

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use semel_core::Epoch;
use tokio::time::Instant;

/// How long an epoch is valid after it was requested.
pub(crate) const EPOCH_TTL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct EpochCache(Mutex<EpochState>);

#[derive(Debug, Default)]
struct EpochState {
    /// The epoch, and when it was requested.
    current: Option<(Epoch, Instant)>,
    /// Replies to requests from before this are outdated.
    operator_act: Option<Instant>,
}

impl EpochCache {
    /// The epoch, if it was read within the last second. Get it before a record is read, so that
    /// the record can be cached.
    pub(crate) fn epoch(&self, now: Instant) -> Option<Epoch> {
        let (epoch, asked) = self.lock().current?;
        (now.saturating_duration_since(asked) < EPOCH_TTL).then_some(epoch)
    }

    /// When the current epoch was requested.
    pub(crate) fn asked(&self) -> Option<Instant> {
        self.lock().current.map(|(_, asked)| asked)
    }

    /// The store replied `epoch` to a request at `asked`.
    pub(crate) fn update(&self, epoch: Epoch, asked: Instant) {
        let mut state = self.lock();
        let newer = state.current.is_none_or(|(_, before)| before <= asked);
        if newer && state.operator_act.is_none_or(|operator_act| operator_act <= asked) {
            state.current = Some((epoch, asked));
        }
    }

    /// An operator has acted through this process: the cached epoch is invalid.
    pub(crate) fn invalidate(&self, now: Instant) {
        *self.lock() = EpochState { current: None, operator_act: Some(now) };
    }

    fn lock(&self) -> MutexGuard<'_, EpochState> {
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
    fn an_epoch_is_valid_for_a_second_from_its_request() {
        let (epoch_cache, origin) = (EpochCache::default(), Instant::now());
        assert_eq!(epoch_cache.epoch(origin), None);
        epoch_cache.update(Epoch(3), origin);
        assert_eq!(epoch_cache.epoch(at(origin, 999)), Some(Epoch(3)));
        assert_eq!(epoch_cache.epoch(at(origin, 1000)), None);
    }

    #[test]
    fn an_overtaken_reply_is_ignored() {
        let (epoch_cache, origin) = (EpochCache::default(), Instant::now());
        epoch_cache.update(Epoch(4), at(origin, 10));
        epoch_cache.update(Epoch(3), origin);
        assert_eq!(epoch_cache.epoch(at(origin, 20)), Some(Epoch(4)));
    }

    #[test]
    fn an_epoch_may_fall_where_a_store_was_restored() {
        let (epoch_cache, origin) = (EpochCache::default(), Instant::now());
        epoch_cache.update(Epoch(4), origin);
        epoch_cache.update(Epoch(2), at(origin, 10));
        assert_eq!(epoch_cache.epoch(at(origin, 20)), Some(Epoch(2)));
    }

    #[test]
    fn after_an_operator_act_only_a_later_request_counts() {
        let (epoch_cache, origin) = (EpochCache::default(), Instant::now());
        epoch_cache.update(Epoch(3), origin);
        epoch_cache.invalidate(at(origin, 50));
        assert_eq!(epoch_cache.epoch(at(origin, 60)), None);
        epoch_cache.update(Epoch(3), at(origin, 40));
        assert_eq!(epoch_cache.epoch(at(origin, 60)), None, "asked before the act was done");
        epoch_cache.update(Epoch(4), at(origin, 60));
        assert_eq!(epoch_cache.epoch(at(origin, 70)), Some(Epoch(4)));
    }
}
