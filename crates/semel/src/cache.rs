//! Completed records, kept in this process (law 12).
//!
//! What is kept is what was replayed: most operations are never repeated, and those that are tend
//! to
//! be repeated again.
//!
//! A completed record changes only by an operator's act, and each of those raises the store's
//! epoch. So an entry counts only under the epoch that was known *before* its record was read, and
//! only for as long as the store was heard of within the last second: a process that is cut off
//! from the store forgets what it knew.

use std::sync::{Mutex, PoisonError};

use hashbrown::DefaultHashBuilder;
use quick_cache::{
    Weighter,
    sync::{Cache as Table, DefaultLifecycle},
};
use semel_core::{Answer, Epoch, Fingerprint, ProcessTime, RecordId};

use crate::house::TRUST;

/// What an entry costs beside its bytes: the table's slot, three counted texts, the answer's
/// handle.
const OVERHEAD_BYTES: usize = 300;

/// What a small answer takes, to size the table.
const ENTRY_BYTES_USUAL: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    table: Table<RecordId, Entry, Weigh, DefaultHashBuilder>,
    known: Mutex<Option<Known>>,
}

#[derive(Clone, Debug)]
struct Entry {
    fingerprint: Fingerprint,
    answer: Answer,
    expires: ProcessTime,
    epoch: Epoch,
}

impl Entry {
    fn said_to(self, fingerprint: Fingerprint) -> Hit {
        let same = self.fingerprint == fingerprint;
        if same { Hit::Completed(self.answer) } else { Hit::Reused }
    }
}

/// The epoch as it was last heard of, and how long that is good for.
#[derive(Clone, Copy, Debug)]
struct Known {
    epoch: Epoch,
    until: ProcessTime,
}

/// What a cached record says to a request.
#[derive(Debug)]
pub(crate) enum Hit {
    /// It belongs to another meaning.
    Reused,
    /// Replay this.
    Completed(Answer),
}

#[derive(Clone, Debug)]
struct Weigh;

impl Weighter<RecordId, Entry> for Weigh {
    fn weight(&self, id: &RecordId, entry: &Entry) -> u64 {
        let id = id.scope.as_str().len() + id.caller.as_str().len() + id.key.as_str().len();
        u64::try_from(id + entry.answer.as_bytes().len() + OVERHEAD_BYTES).unwrap_or(u64::MAX)
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let items = usize::try_from(bytes_max / ENTRY_BYTES_USUAL).unwrap_or(usize::MAX);
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let table = Table::with(items, bytes_max, Weigh, hasher, lifecycle);
        Self { table, known: Mutex::default() }
    }

    /// The epoch to remember before a record is read, so that what was read can be kept.
    pub(crate) fn epoch(&self, now: ProcessTime) -> Option<Epoch> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.filter(|known| now < known.until).map(|known| known.epoch)
    }

    /// The store said `epoch` to a question that was asked at `asked`.
    pub(crate) fn hear(&self, epoch: Epoch, asked: ProcessTime) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|known| known.epoch != epoch) {
            self.table.clear();
        }
        *known = Some(Known { epoch, until: asked.after(TRUST) });
    }

    pub(crate) fn get(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        now: ProcessTime,
    ) -> Option<Hit> {
        let epoch = self.epoch(now)?;
        let entry = self.table.get(id)?;
        if entry.epoch != epoch || entry.expires <= now {
            self.table.remove(id);
            return None;
        }
        Some(entry.said_to(fingerprint))
    }

    /// What was known, though the store has not been heard of since: better than nothing for a
    /// request that would pass the store by.
    pub(crate) fn recall(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        now: ProcessTime,
    ) -> Option<Hit> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = self.table.get(id)?;
        let current = entry.epoch == known?.epoch && now < entry.expires;
        current.then(|| entry.said_to(fingerprint))
    }

    pub(crate) fn put(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        answer: Answer,
        expires: ProcessTime,
        epoch: Epoch,
    ) {
        let entry = Entry { fingerprint, answer, expires, epoch };
        self.table.insert(id.clone(), entry);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use semel_core::{Caller, Key, Scope};

    use super::*;

    const LATER: Duration = Duration::from_secs(3600);

    fn id(key: &str) -> RecordId {
        RecordId::new(Scope::new("s").unwrap(), Caller::anonymous(), Key::new(key).unwrap())
    }

    fn fingerprint(byte: u8) -> Fingerprint {
        Fingerprint::from_bytes(&[byte; 33]).unwrap()
    }

    fn at(millis: u64) -> ProcessTime {
        ProcessTime::from_millis(millis)
    }

    fn filled() -> Cache {
        let cache = Cache::new(1 << 20);
        cache.hear(Epoch(3), at(0));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), Epoch(3));
        cache
    }

    fn hits(cache: &Cache, now: u64) -> bool {
        cache.get(&id("k"), fingerprint(1), at(now)).is_some()
    }

    #[test]
    fn a_record_is_found_by_its_id_and_compared_by_its_meaning() {
        let cache = filled();
        let hit = cache.get(&id("k"), fingerprint(1), at(10));
        assert!(matches!(hit, Some(Hit::Completed(answer)) if answer == Answer::failed()));
        assert!(matches!(cache.get(&id("k"), fingerprint(2), at(10)), Some(Hit::Reused)));
        assert!(cache.get(&id("other"), fingerprint(1), at(10)).is_none());
    }

    #[test]
    fn nothing_counts_once_the_store_was_not_heard_of_for_a_second() {
        let cache = filled();
        assert!(hits(&cache, 999));
        assert!(!hits(&cache, 1000));
        cache.hear(Epoch(3), at(2000));
        assert!(hits(&cache, 2500), "it was not forgotten, only not trusted");
    }

    #[test]
    fn an_operators_act_empties_it() {
        let cache = filled();
        cache.hear(Epoch(4), at(100));
        assert!(!hits(&cache, 200));
    }

    #[test]
    fn what_was_read_before_an_operators_act_does_not_come_back() {
        let cache = filled();
        let before = cache.epoch(at(10)).unwrap();
        cache.hear(Epoch(4), at(100));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), before);
        assert!(!hits(&cache, 200));
    }

    #[test]
    fn a_record_past_its_retention_is_gone() {
        let cache = Cache::new(1 << 20);
        cache.hear(Epoch(0), at(0));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(500), Epoch(0));
        assert!(hits(&cache, 499));
        assert!(!hits(&cache, 500));
    }

    #[test]
    fn it_holds_no_more_bytes_than_it_may() {
        let cache = Cache::new(1 << 20);
        cache.hear(Epoch(0), at(0));
        for number in 0..10_000 {
            let id = id(&number.to_string());
            cache.put(&id, fingerprint(1), Answer::failed(), at(0).after(LATER), Epoch(0));
        }
        assert!(cache.table.weight() <= 1 << 20);
        assert!(cache.table.len() > 1000);
    }
}
