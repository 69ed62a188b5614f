//! The counters that one atomic step has loaded, and which of them it changed.

use std::collections::BTreeMap;

use super::{Limit, LimitCounter, LimitEnd, LimitKey, OperationId};
use crate::StoreTime;

/// Loaded counters. One that was not loaded counts as unused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterSet(BTreeMap<LimitKey, LoadedCounter>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LoadedCounter {
    counter: LimitCounter,
    is_changed: bool,
}

impl CounterSet {
    /// Adds a counter as the store has it.
    pub fn load(&mut self, key: LimitKey, counter: LimitCounter) {
        self.0.insert(key, LoadedCounter { counter, is_changed: false });
    }

    /// Whether the counter was loaded or made.
    #[must_use]
    pub fn contains(&self, key: LimitKey) -> bool {
        self.0.contains_key(&key)
    }

    /// The counters to write, by rising key. One that is [empty](LimitCounter::is_empty) is to be
    /// deleted.
    pub fn changed(&self) -> impl Iterator<Item = (LimitKey, &LimitCounter)> {
        self.0.iter().filter(|(_, one)| one.is_changed).map(|(key, one)| (*key, &one.counter))
    }

    pub(super) fn get(&mut self, limit: &Limit) -> &LimitCounter {
        let fresh = || LoadedCounter { counter: LimitCounter::new(limit), is_changed: false };
        &self.0.entry(limit.key).or_insert_with(fresh).counter
    }

    pub(super) fn get_mut(&mut self, limit: &Limit) -> &mut LimitCounter {
        let fresh = || LoadedCounter { counter: LimitCounter::new(limit), is_changed: false };
        let loaded = self.0.entry(limit.key).or_insert_with(fresh);
        loaded.is_changed = true;
        &mut loaded.counter
    }

    pub(crate) fn settle(
        &mut self,
        key: LimitKey,
        operation: OperationId,
        end: &LimitEnd,
        now: StoreTime,
    ) {
        if let Some(loaded) = self.0.get_mut(&key) {
            loaded.is_changed |= loaded.counter.settle(operation, end, now);
        }
    }
}
