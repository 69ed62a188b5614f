//! Values by caller, for limits and quotas.
//!
//! A caller's name is unique within its scope only: two scopes may find their callers by different
//! rules, and a client that may choose its name in one scope must not use up what a party of the
//! same name has in another. So the scope is part of the key here, as it is of a record's.

use std::{
    hash::{BuildHasher, Hash},
    sync::{Mutex, MutexGuard, PoisonError},
};

use hashbrown::{DefaultHashBuilder, Equivalent, HashMap};
use semel_core::{Caller, RecordId, Scope};

/// Few enough to be cheap, enough to make lock contention rare.
pub(crate) const SHARDS: usize = 16;

/// A caller and its scope.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScopedCaller {
    pub(crate) scope: Scope,
    pub(crate) caller: Caller,
}

/// A borrowed [`ScopedCaller`], with the same hash.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct ScopedCallerRef<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) caller: &'a Caller,
}

impl<'a> ScopedCallerRef<'a> {
    /// The caller of a record.
    pub(crate) const fn of(id: &'a RecordId) -> Self {
        Self { scope: &id.scope, caller: &id.caller }
    }
}

impl Equivalent<ScopedCaller> for ScopedCallerRef<'_> {
    fn equivalent(&self, key: &ScopedCaller) -> bool {
        *self.caller == key.caller && *self.scope == key.scope
    }
}

impl From<&ScopedCallerRef<'_>> for ScopedCaller {
    fn from(key: &ScopedCallerRef<'_>) -> Self {
        Self { scope: key.scope.clone(), caller: key.caller.clone() }
    }
}

impl ScopedCaller {
    pub(crate) const fn as_ref(&self) -> ScopedCallerRef<'_> {
        ScopedCallerRef { scope: &self.scope, caller: &self.caller }
    }
}

/// A map by caller, sharded.
#[derive(Debug)]
pub(crate) struct PerCaller<T> {
    shards: [Mutex<CallerMap<T>>; SHARDS],
    hasher: DefaultHashBuilder,
}

pub(crate) type CallerMap<T> = HashMap<ScopedCaller, T>;

impl<T> PerCaller<T> {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), hasher: DefaultHashBuilder::default() }
    }

    /// The shard that has this caller.
    pub(crate) fn shard(&self, caller: ScopedCallerRef<'_>) -> MutexGuard<'_, CallerMap<T>> {
        let [first, ..] = &self.shards;
        let shard = usize::try_from(self.hasher.hash_one(caller) >> 32).unwrap_or(0) % SHARDS;
        lock(self.shards.get(shard).unwrap_or(first))
    }

    /// Each shard in turn, locked.
    pub(crate) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, CallerMap<T>>> {
        self.shards.iter().map(lock)
    }
}

/// Each change is a single assignment: a poisoned lock guards sound data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_found_in_its_own_scope_only() {
        let map = PerCaller::new();
        let scopes = ["payments", "signup"].map(|scope| Scope::new(scope).unwrap());
        let caller = Caller::new("shop-7").unwrap();
        for (number, scope) in scopes.iter().enumerate() {
            let key = ScopedCallerRef { scope, caller: &caller };
            assert_eq!(map.shard(key).get(&key), None);
            *map.shard(key).entry((&key).into()).or_insert(0) += number + 1;
        }
        for (number, scope) in scopes.iter().enumerate() {
            let key = ScopedCallerRef { scope, caller: &caller };
            assert_eq!(map.shard(key).get(&key), Some(&(number + 1)));
        }
        assert_eq!(map.shards().map(|shard| shard.len()).sum::<usize>(), 2);
    }
}
