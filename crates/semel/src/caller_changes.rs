//! Detects requests that run again under another caller: the sign of a credential that changes
//! between attempts.
//!
//! Each granted claim is remembered by digests in a table of fixed size, in this process only. A
//! newer claim replaces an older one in its slot, so under load a change may go unnoticed.

use std::{
    hash::BuildHasher,
    sync::{Mutex, MutexGuard},
};

use hashbrown::DefaultHashBuilder;
use semel_core::{Fingerprint, ProcessTime, RecordAction, RecordId, Release};

use crate::{
    observer::{EventKind, EventSink},
    per_caller::lock,
};

/// How long a claim is remembered, in seconds.
const WINDOW_SECONDS: u32 = 600;

/// Few enough to be cheap, enough to make lock contention rare.
const SHARDS: usize = 16;

/// Claims remembered by one shard: 2 MiB for all shards, allocated with the first claim.
const SLOTS: usize = 8192;

/// The callers of recent claims.
#[derive(Debug)]
pub(crate) struct CallerChanges {
    shards: [Mutex<Vec<RecentClaim>>; SHARDS],
    hasher: DefaultHashBuilder,
}

/// One claim: digests of its scope, key and fingerprint and of its caller. Zero is an empty slot.
#[derive(Clone, Copy, Debug, Default)]
struct RecentClaim {
    request: u64,
    caller: u32,
    /// When it was granted, in seconds of the process's clock.
    at: u32,
}

impl CallerChanges {
    pub(crate) fn new() -> Self {
        Self { shards: Default::default(), hasher: DefaultHashBuilder::default() }
    }

    /// Remembers a granted claim. Emits an event if the same request of another caller was claimed
    /// shortly before and is not known to have had no effect.
    pub(crate) fn granted(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        now: ProcessTime,
        events: &EventSink,
    ) {
        if events.is_enabled() && self.replace(id, fingerprint, now) {
            events.emit(id, EventKind::CallerChanged);
        }
    }

    /// Whether the slot had the same request of another caller.
    fn replace(&self, id: &RecordId, fingerprint: Fingerprint, now: ProcessTime) -> bool {
        let new = self.slot(id, fingerprint, now);
        let mut slots = self.shard(new);
        if slots.is_empty() {
            *slots = vec![RecentClaim::default(); SLOTS];
        }
        slots.get_mut(new.number()).is_some_and(|slot| {
            let changed = slot.request == new.request
                && slot.caller != new.caller
                && new.at.saturating_sub(slot.at) < WINDOW_SECONDS;
            *slot = new;
            changed
        })
    }

    /// Drops a claim whose operation is known to have had no effect: it may run again.
    pub(crate) fn ended(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        action: &RecordAction,
        now: ProcessTime,
    ) {
        match action {
            RecordAction::Complete(_)
            | RecordAction::Hold
            | RecordAction::Release(Release::Rerun) => {}
            RecordAction::Release(Release::NotSent | Release::Refused) | RecordAction::Forget => {
                let old = self.slot(id, fingerprint, now);
                if let Some(slot) = self.shard(old).get_mut(old.number())
                    && (slot.request, slot.caller) == (old.request, old.caller)
                {
                    *slot = RecentClaim::default();
                }
            }
        }
    }

    fn slot(&self, id: &RecordId, fingerprint: Fingerprint, now: ProcessTime) -> RecentClaim {
        let request = self.hasher.hash_one((&id.scope, &id.key, fingerprint)).max(1);
        let caller = truncated(self.hasher.hash_one(&id.caller));
        RecentClaim { request, caller, at: truncated(now.as_millis() / 1000) }
    }

    fn shard(&self, of: RecentClaim) -> MutexGuard<'_, Vec<RecentClaim>> {
        let [first, ..] = &self.shards;
        lock(self.shards.get(of.hash() % SHARDS).unwrap_or(first))
    }
}

impl RecentClaim {
    fn hash(self) -> usize {
        usize::try_from(self.request >> 32).unwrap_or_default()
    }

    /// Its place in its shard.
    fn number(self) -> usize {
        self.hash() / SHARDS % SLOTS
    }
}

/// The lower half of a number.
fn truncated(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_core::{Caller, Key, Scope};

    use super::*;

    fn id(caller: &str, key: &str) -> RecordId {
        RecordId::new(
            Scope::new("payments").unwrap(),
            Caller::new(caller).unwrap(),
            Key::new(key).unwrap(),
        )
    }

    fn fingerprint(body: &str) -> Fingerprint {
        Fingerprint::of_parts("charge", &[body.as_bytes()])
    }

    #[test]
    fn a_request_of_another_caller_is_noticed_for_ten_minutes() {
        let (changes, start) = (CallerChanges::new(), ProcessTime::default());
        let one = fingerprint("one");
        assert!(!changes.replace(&id("ada", "k"), one, start));
        assert!(!changes.replace(&id("ada", "k"), one, start), "a rerun of the same caller");
        assert!(!changes.replace(&id("bob", "k"), fingerprint("two"), start), "another request");
        assert!(!changes.replace(&id("bob", "other"), one, start), "another key");
        assert!(changes.replace(&id("bob", "k"), one, start));
        assert!(!changes.replace(&id("bob", "k"), one, start));
        let late = start.after(Duration::from_secs(WINDOW_SECONDS.into()));
        assert!(!changes.replace(&id("ada", "k"), one, late));
    }

    #[test]
    fn a_request_that_may_have_had_an_effect_is_remembered() {
        let one = fingerprint("one");
        for (action, remembered) in [
            (RecordAction::Hold, true),
            (RecordAction::Release(Release::Rerun), true),
            (RecordAction::Release(Release::Refused), false),
            (RecordAction::Release(Release::NotSent), false),
        ] {
            let (changes, now) = (CallerChanges::new(), ProcessTime::default());
            changes.replace(&id("ada", "k"), one, now);
            changes.ended(&id("ada", "k"), one, &action, now);
            assert_eq!(changes.replace(&id("bob", "k"), one, now), remembered, "{action:?}");
        }
    }

    #[test]
    fn a_request_without_effect_may_run_again_under_another_caller() {
        let (changes, now) = (CallerChanges::new(), ProcessTime::default());
        let one = fingerprint("one");
        assert!(!changes.replace(&id("ada", "k"), one, now));
        changes.ended(&id("bob", "k"), one, &RecordAction::Forget, now);
        assert!(changes.replace(&id("bob", "k"), one, now), "the other one had an effect");
        changes.ended(&id("bob", "k"), one, &RecordAction::Forget, now);
        assert!(!changes.replace(&id("ada", "k"), one, now));
    }

    #[test]
    fn any_number_of_claims_takes_the_same_memory() {
        let changes = CallerChanges::new();
        for number in 0..100_000 {
            let key = number.to_string();
            changes.replace(&id("ada", &key), fingerprint("one"), ProcessTime::default());
        }
        let slots: usize = changes.shards.iter().map(|shard| lock(shard).capacity()).sum();
        assert_eq!(slots * size_of::<RecentClaim>(), 2 << 20);
    }
}
