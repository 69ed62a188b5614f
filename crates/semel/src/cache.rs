//! Completed records, kept in this process (law 12).
//!
//! What is kept is what was replayed, since what is repeated once tends to be repeated again; and
//! what this process completed, so that its repeats are answered while the store is away. Among
//! many that are never repeated, the table first drops those that were never looked up.
//!
//! A completed record changes only by an operator's act, and each of those raises the store's
//! epoch. So an entry counts only under the epoch that was known *before* its record was read or
//! written, and only for as long as the store answered within the last second; while the store
//! is away, for five minutes.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use quick_cache::{
    Weighter,
    sync::{Cache as Table, DefaultLifecycle},
};
use semel_core::{Answer, Epoch, Fingerprint, Problem, ProcessTime, RecordId, Reply};

use crate::{house::EPOCH_TTL, observer::ReplaySource};

/// How long records are replayed without the store, from its last answer on.
const AWAY_TTL: Duration = Duration::from_secs(5 * 60);

/// What an entry costs beside its bytes: the table's slot, three counted texts, the answer's
/// handle.
const OVERHEAD_BYTES: usize = 300;

/// What a small answer takes, to size the table.
const ENTRY_BYTES_USUAL: u64 = 1024;

#[derive(Debug)]
pub(crate) struct Cache {
    table: Table<RecordId, Entry, Weigh, DefaultHashBuilder>,
    known: Known,
}

#[derive(Clone, Debug)]
struct Entry {
    fingerprint: Fingerprint,
    answer: Answer,
    expires: ProcessTime,
    epoch: Epoch,
}

/// The epoch as it was last heard of. The one task that asks for it writes the epoch first, and
/// readers read it last, so that an epoch is never older than the time that goes with it.
#[derive(Debug, Default)]
struct Known {
    epoch: AtomicU64,
    /// The millisecond after the one in which it was asked for; zero if it was never heard.
    asked: AtomicU64,
}

impl Known {
    fn read(&self) -> Option<(Epoch, ProcessTime)> {
        let asked = self.asked.load(Ordering::Acquire).checked_sub(1)?;
        let epoch = Epoch(self.epoch.load(Ordering::Acquire));
        Some((epoch, ProcessTime::from_millis(asked)))
    }

    fn write(&self, epoch: Epoch, asked: ProcessTime) {
        self.epoch.store(epoch.0, Ordering::Release);
        self.asked.store(asked.as_millis().saturating_add(1), Ordering::Release);
    }
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
        Self { table, known: Known::default() }
    }

    /// The epoch to remember before a record is read or written, so that it can be kept.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        self.known.read().map(|(epoch, _)| epoch)
    }

    /// The store said `epoch` to a question that was asked at `asked`.
    pub(crate) fn hear(&self, epoch: Epoch, asked: ProcessTime) {
        if self.epoch().is_some_and(|known| known != epoch) {
            self.table.clear();
        }
        self.known.write(epoch, asked);
    }

    /// What a request gets whose record is known to be completed.
    pub(crate) fn get(
        &self,
        id: &RecordId,
        fingerprint: Fingerprint,
        from: ReplaySource,
        now: ProcessTime,
    ) -> Option<Reply> {
        let (epoch, asked) = self.known.read()?;
        let ttl = if from == ReplaySource::CacheWhileAway { AWAY_TTL } else { EPOCH_TTL };
        if now >= asked.after(ttl) {
            return None;
        }
        let entry = self.table.get(id)?;
        if entry.epoch != epoch || entry.expires <= now {
            self.table.remove(id);
            return None;
        }
        let same = entry.fingerprint == fingerprint;
        Some(if same { Reply::Replayed(entry.answer) } else { Reply::Problem(Problem::KeyReused) })
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

    fn found(cache: &Cache, byte: u8, now: u64) -> Option<Reply> {
        cache.get(&id("k"), fingerprint(byte), ReplaySource::Cache, at(now))
    }

    fn hits(cache: &Cache, now: u64) -> bool {
        found(cache, 1, now).is_some()
    }

    fn hits_while_away(cache: &Cache, now: u64) -> bool {
        cache.get(&id("k"), fingerprint(1), ReplaySource::CacheWhileAway, at(now)).is_some()
    }

    #[test]
    fn a_record_is_found_by_its_id_and_compared_by_its_fingerprint() {
        let cache = filled();
        assert_eq!(found(&cache, 1, 10), Some(Reply::Replayed(Answer::failed())));
        assert_eq!(found(&cache, 2, 10), Some(Reply::Problem(Problem::KeyReused)));
        let other = cache.get(&id("other"), fingerprint(1), ReplaySource::Cache, at(10));
        assert_eq!(other, None);
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
    fn while_the_store_is_away_a_record_counts_for_five_minutes_and_never_past_its_retention() {
        let cache = filled();
        assert!(hits_while_away(&cache, 299_999));
        assert!(!hits_while_away(&cache, 300_000));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(60_000), Epoch(3));
        assert!(hits_while_away(&cache, 59_999));
        assert!(!hits_while_away(&cache, 60_000));
    }

    #[test]
    fn an_operators_act_empties_it() {
        let cache = filled();
        cache.hear(Epoch(4), at(100));
        assert!(!hits(&cache, 200) && !hits_while_away(&cache, 200));
    }

    #[test]
    fn what_was_read_before_an_operators_act_does_not_come_back() {
        let cache = filled();
        let before = cache.epoch().unwrap();
        cache.hear(Epoch(4), at(100));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), before);
        assert!(!hits(&cache, 200));
        cache.put(&id("k"), fingerprint(1), Answer::failed(), at(0).after(LATER), before);
        assert!(!hits_while_away(&cache, 200));
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
